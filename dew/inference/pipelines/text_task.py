"""`TextTask`: what the tasks of text encoders share: texts to rows of tokens, and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.inference.pipelines.task import Options, Task
from dew.inference.row_outputs import (
    FEW_STEPS,
    Row,
    padded_length,
    position_limit,
    row_outputs,
)
from dew.typing import Cutting

STRATEGIES = ("longest_first", "only_first", "only_second")
UNCUT = (None, False, "do_not_truncate")
CUTTING_DEFAULTS: dict[str, Any] = {"truncation": None, "max_length": None, "padding": None}
"""The options of transformers' tokenizers that tasks pass on; padding changes no result."""


class TextTask(Task):
    """Reads texts; see `Task`.

    Attributes:
        gives: the model's outputs that the task reads.
        computes: what is computed of a native model in place of its outputs.
        remedy: what to do about a text that is too long, for messages.
        kinds_unstated: whether a tokenizer of a class for any model, which does not say so, tells
            the model which of two texts a token is of; transformers 4 and 5 differ in it.
    """

    gives: ClassVar[tuple[str, ...]] = ("logits",)
    computes: ClassVar[Any] = None
    remedy: ClassVar[str] = "shorten the text"
    kinds_unstated: ClassVar[bool] = False

    def __init__(self, bundle: Bundle, *, batch_size: int | None = None, **options: Any):
        super().__init__(bundle, batch_size=batch_size, **options)
        tells = getattr(self.processor, "tells_kinds", None)
        self._kinds = tells is None or tells(unstated=self.kinds_unstated)

    def encoded(
        self, texts: Sequence[Any], cutting: Cutting | None = None, *, words: bool = False
    ) -> list[Any]:
        """Return the tokenizers library's encodings of texts, pairs, or lists of words.

        Args:
            texts: strings, tuples of two strings, or with `words` lists of strings.
            cutting: how long ones are cut; None leaves them whole.
            words: whether they are lists of words.
        """
        return self.processor.encodings(texts, cutting, words=words) if texts else []

    def row(self, encoding: Any, *, text: Any = None, places: Sequence[int] = ()) -> Row:
        """Return the row of an encoding.

        Raises:
            InputRefused: it has no token, more than the model has positions, or one that the
                model has no row for.
        """
        ids, limit = encoding.ids, position_limit(self.bundle)
        if not ids:
            raise InputRefused(f"{self.name}: the text {shown(text)} has no token; write a text")
        if limit is not None and len(ids) > limit:
            raise InputRefused(
                f"{self.name}: the text is {len(ids)} tokens long, the model has {limit} "
                f"positions; {self.remedy}"
            )
        bundle: Any = self.bundle
        size = bundle.vocab_size if hasattr(bundle, "traced") else bundle.model.vocab_size
        if size is not None and max(ids) >= size:
            raise InputRefused(
                f"{self.name}: the tokenizer gives the id {max(ids)}, the model's vocabulary is "
                f"{size}; take the tokenizer that belongs to these weights"
            )
        told = self._kinds and any(encoding.type_ids)
        return Row(ids, encoding.type_ids if told else (), places)

    def outputs(self, rows: Sequence[Row], batch_size: int) -> list[dict[str, np.ndarray]]:
        """Return what the task reads of the model for each row; see `row_outputs`."""
        return row_outputs(
            self.bundle, rows, names=self.gives, batch_size=batch_size, compute=self.computes
        )

    def warm_up(self, longest: int = 512, *, batch_size: int = 1) -> None:
        """Compile ahead what calls need, so that none of them waits for it.

        Args:
            longest: tokens of the longest text.
            batch_size: texts a batch.
        """
        limit = position_limit(self.bundle)
        longest = longest if limit is None else min(longest, limit)
        reached = range(1, longest + 1)
        for length in sorted({padded_length(at, limit, steps=FEW_STEPS) for at in reached}):
            row = Row([0] * length, places=() if self.computes is None else (0,))
            self.outputs([row] * batch_size, batch_size)

    @property
    def longest(self) -> int | None:
        """The most tokens that the checkpoint's tokenizer and the model take, None for any."""
        stated = getattr(self.processor, "model_max_length", None)
        limits = [size for size in (stated, position_limit(self.bundle)) if size is not None]
        return min(limits, default=None)

    def cutting(self, options: Options) -> Cutting | None:
        """Return how transformers' tokenizers would cut by these options; None is not at all.

        Args:
            options: `truncation` and `max_length`.

        Raises:
            InputRefused: an unknown strategy, or no length of at least 1.
        """
        strategy, length = options["truncation"], options["max_length"]
        if length is not None and (type(length) is not int or length < 1):
            raise InputRefused(f"max_length is {shown(length)}; expected a number of tokens")
        if strategy is None and length is not None:
            strategy = True
        if strategy in UNCUT:
            return None
        strategy = STRATEGIES[0] if strategy is True else strategy
        if strategy not in STRATEGIES:
            raise InputRefused(
                f"truncation is {shown(strategy)}; expected True, False or one of "
                f"{', '.join(STRATEGIES)}"
            )
        length = self.longest if length is None else length
        return None if length is None else Cutting(length, strategy)

    def text(self, value: Any) -> str:
        """Return a text.

        Raises:
            InputRefused: it is none.
        """
        if not isinstance(value, str):
            raise InputRefused(f"{self.name}: a text is {shown(value)}; expected {self.reads}")
        return value


def checked_count(name: str, value: Any) -> int:
    """Return a whole number of at least 1.

    Args:
        name: the option's.
        value: what was given.

    Raises:
        InputRefused: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputRefused(f"{name} is {shown(value)}; expected a whole number of at least 1")
    return value
