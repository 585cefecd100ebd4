"""Fill-mask: texts with a mask in, the likeliest tokens at it out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.inference.pipelines.class_scores import class_scores
from dew.inference.pipelines.task import Options
from dew.inference.pipelines.text_task import CUTTING_DEFAULTS, TextTask, checked_count


def masked_logits(model: Any, variables: Any, inputs: dict[str, Any]) -> dict[str, jax.Array]:
    """Return the masked head's `logits` [N, K, V] at `places` [N, K] alone.

    The head's product with the vocabulary is most of what a small model computes.

    Args:
        model: a text encoder with a masked head.
        variables: its variables.
        inputs: by Hugging Face's names, and `places`.
    """
    names = {"attention_mask": "mask", "token_type_ids": "kinds", "position_ids": "positions"}
    given = {names[name]: value for name, value in inputs.items() if name in names}

    def at_places(encoder: Any) -> dict[str, jax.Array]:
        states = encoder(inputs["input_ids"], **given)
        chosen = jnp.take_along_axis(states, inputs["places"][..., None], axis=1)
        return encoder.finished(chosen, None, encoder.embed(), encoder.top, encoder.pool)

    return model.apply(variables, method=at_places)


class FillMask(TextTask):
    """Says which tokens may stand where a text has the tokenizer's mask.

    Options of a call:

    - `top_k`: how many tokens a mask, the likeliest first.
    - `targets`: a word or several to choose from; one that is no token counts as its first token.
    - `tokenizer_kwargs`: a dict of `truncation` and `max_length`; by default long texts are
      refused.

    A result is a list of `{"score", "token", "token_str", "sequence"}`; with several masks a list
    of those lists. As in transformers a list of one text has that text's result.
    """

    name = "fill-mask"
    fits = ("fill-mask",)
    computes = staticmethod(masked_logits)
    remedy = 'pass tokenizer_kwargs={"truncation": True} to cut it, or shorten it'
    defaults: ClassVar[Mapping[str, Any]] = {
        "top_k": 5,
        "targets": None,
        "tokenizer_kwargs": None,
    }

    def __init__(self, bundle: Bundle, *, batch_size: int | None = None, **options: Any):
        super().__init__(bundle, batch_size=batch_size, **options)
        special = self.processor.special_tokens
        self._mask = special.get("mask_token")
        if self._mask is None:
            raise InputRefused(
                "fill-mask: the tokenizer names no mask_token; name it in tokenizer_config.json"
            )
        self._mask_id = self.processor.token_id(self._mask)
        padding = special.get("pad_token")
        self._padding_id = None if padding is None else self.processor.token_id(padding)

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Fill; see `Task`."""
        result = super().__call__(inputs, **options)
        return result[0] if isinstance(inputs, list) and len(inputs) == 1 else result

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        given = options["tokenizer_kwargs"] or {}
        if not isinstance(given, Mapping) or set(given) - set(CUTTING_DEFAULTS):
            raise InputRefused(
                f"tokenizer_kwargs is {shown(given)}; expected a dict of "
                f"{', '.join(CUTTING_DEFAULTS)}"
            )
        options["top_k"] = 5 if options["top_k"] is None else options["top_k"]
        checked_count("top_k", options["top_k"])
        options["cutting"] = self.cutting({**CUTTING_DEFAULTS, **given})
        if options["targets"] is not None:
            options["targets"] = self._target_ids(options["targets"])
        return options

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return each text's tokens."""
        texts = [self.text(item) for item in items]
        rows = []
        for text, one in zip(texts, self.encoded(texts, options["cutting"]), strict=True):
            places = [at for at, token in enumerate(one.ids) if token == self._mask_id]
            if not places:
                raise InputRefused(
                    f"fill-mask: the text {shown(text)} has no mask; write {self._mask} where a "
                    "token is to be found"
                )
            rows.append(self.row(one, text=text, places=places))
        scores = self.outputs(rows, batch_size)
        return [
            self._filled(row.ids, row.places, one["logits"], options)
            for row, one in zip(rows, scores, strict=True)
        ]

    def _filled(
        self, ids: Sequence[int], places: Sequence[int], logits: np.ndarray, options: Options
    ) -> Any:
        # A traced model gives the logits of all tokens.
        wanted = list(places) if hasattr(self.bundle, "traced") else slice(len(places))
        scores = class_scores(logits[wanted], "softmax")
        targets = options["targets"]
        known = np.arange(scores.shape[1]) if targets is None else targets
        scores = scores[:, known]
        count = min(options["top_k"], len(known))
        found = []
        for place, row in zip(places, scores, strict=True):
            best = np.argpartition(-row, count - 1)[:count]
            best = best[np.argsort(-row[best], kind="stable")]
            found.append(
                [
                    self._one(ids, place, int(known[at]), float(row[at]), alone=len(places) == 1)
                    for at in best
                ]
            )
        return found[0] if len(found) == 1 else found

    def _one(
        self, ids: Sequence[int], place: int, token: int, score: float, *, alone: bool
    ) -> dict[str, Any]:
        filled = [token if at == place else own for at, own in enumerate(ids)]
        kept = [own for own in filled if own != self._padding_id]
        return {
            "score": score,
            "token": token,
            "token_str": self.processor.decode([token], skip_special_tokens=False),
            # Beside another mask the special tokens stay, or that mask would be gone.
            "sequence": self.processor.decode(kept, skip_special_tokens=alone),
        }

    def _target_ids(self, targets: Any) -> np.ndarray:
        words = [targets] if isinstance(targets, str) else targets
        if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
            raise InputRefused(f"targets is {shown(targets)}; expected a text or a list of texts")
        found = []
        for word in words:
            number = self.processor.token_id(word)
            if number is None:
                ids = self.processor.encode(word, add_special_tokens=False)[:1]
                what = f"{shown(self.processor.token(ids[0]))} stands for it" if ids else "left out"
                warnings.warn(f"fill-mask: {shown(word)} is no token; {what}", stacklevel=4)
                found += ids
            else:
                found.append(number)
        if not found:
            raise InputRefused("fill-mask: no target is left; pass at least one word")
        return np.array(sorted(set(found)))
