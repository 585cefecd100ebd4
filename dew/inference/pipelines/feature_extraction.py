"""Feature extraction: texts in, the states of their tokens out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dew.artifacts import Representations
from dew.errors import InputRefused, shown
from dew.inference.embedding import representations
from dew.inference.pipelines.task import Options
from dew.inference.pipelines.text_task import CUTTING_DEFAULTS, TextTask


class FeatureExtraction(TextTask):
    """Gives the last layer's states of a text's tokens.

    Options of a call:

    - `return_tensors`: give an array [1, L, D] instead of nested lists.
    - `truncation`, `max_length`: how long texts are cut; by default they are refused.
    - `tokenize_kwargs`: the same in a dict, as transformers takes them.
    """

    name = "feature-extraction"
    fits = ("feature-extraction",)
    loads = "feature-extraction"
    gives = ("last_hidden_state",)
    remedy = "pass truncation=True to cut it, or shorten it"
    defaults: ClassVar[Mapping[str, Any]] = {
        "return_tensors": False,
        "tokenize_kwargs": None,
        **CUTTING_DEFAULTS,
    }

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        given = options["tokenize_kwargs"] or {}
        if not isinstance(given, Mapping) or set(given) - set(CUTTING_DEFAULTS):
            raise InputRefused(
                f"tokenize_kwargs is {shown(given)}; expected a dict of "
                f"{', '.join(CUTTING_DEFAULTS)}"
            )
        twice = [name for name in given if options[name] is not None]
        if twice:
            raise InputRefused(
                f"{twice[0]} was given twice, as an option and in tokenize_kwargs; leave out one"
            )
        return {**options, "cutting": self.cutting({**options, **given})}

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return each text's states."""
        found = [states[None] for states in self.states(items, options, batch_size=batch_size)]
        return found if options["return_tensors"] else [states.tolist() for states in found]

    def states(
        self, items: Sequence[Any], options: Options, *, batch_size: int
    ) -> list[np.ndarray]:
        """Return the states [L, D] of each text's tokens."""
        texts = [self.text(item) for item in items]
        encodings = self.encoded(texts, options["cutting"])
        rows = [self.row(one, text=text) for one, text in zip(encodings, texts, strict=True)]
        found = self.outputs(rows, batch_size)
        return [one["last_hidden_state"] for one in found]

    def typed(
        self, inputs: Any, *, batch_size: int | None = None, **options: Any
    ) -> Representations:
        """Return the mean of each text's states, [N, D]; see `Task.typed`."""
        settled = self.checked(self.merged(options))
        found = self.states(self.all_items(inputs), settled, batch_size=self.size(batch_size))
        return representations([states.mean(axis=0) for states in found])
