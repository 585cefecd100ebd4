"""Does greedy decoding give transformers' tokens, alone and in a left-padded batch?"""

from __future__ import annotations

import numpy as np

from parity import reference
from parity.check import Finding
from parity.packing import Tokens
from parity.subject import Subject

NEW_TOKENS = 64


class Greedy:
    """The ids of 64 greedy tokens, after one prompt and after a batch of uneven ones."""

    name = "greedy"
    tolerance = f"{NEW_TOKENS} tokens equal"

    def inputs(self, subject: Subject, seed: int) -> list[Tokens]:
        """Return one prompt, and three of uneven lengths padded on the left."""
        length = max(2, min(16, subject.context // 3))
        ids = subject.token_stream(3 * length, seed).reshape(3, length)
        mask = np.ones_like(ids)
        mask[1, : length // 2] = 0
        mask[2, : length - 1] = 0
        padded = np.where(mask == 1, ids, subject.padding_id)
        return [Tokens(ids[:1], mask[:1]), Tokens(padded, mask)]

    def ours(self, subject: Subject, inputs: list[Tokens]) -> list[np.ndarray]:
        """Return the bundle's tokens, prompts included."""
        return [
            np.asarray(
                subject.bundle.generate(
                    batch.input_ids,
                    batch.attention_mask,
                    max_new_tokens=_new_tokens(subject, batch),
                    do_sample=False,
                )
            )
            for batch in inputs
        ]

    def reference(self, subject: Subject, inputs: list[Tokens]) -> list[np.ndarray]:
        """Return the tokens of transformers' `generate` in float32."""
        model = subject.checkpoint.model(reference.SINGLE)
        return [
            reference.greedy(
                model,
                batch.input_ids,
                batch.attention_mask,
                new_tokens=_new_tokens(subject, batch),
            )
            for batch in inputs
        ]

    def compare(self, ours: list[np.ndarray], reference: list[np.ndarray]) -> Finding:
        """Ask for the same ids, and name the first that differs."""
        tokens = sum(int(answer.size) for answer in reference)
        for found, wanted in zip(ours, reference, strict=True):
            if found.shape != wanted.shape:
                reason = f"dew gives shape {found.shape}, transformers {wanted.shape}"
                return Finding(False, {"tokens": tokens}, reason)
            rows, columns = np.nonzero(found != wanted)
            if rows.size:
                at = int(columns.min())
                row = int(rows[columns.argmin()])
                reason = (
                    f"{rows.size} ids differ, the first at place {at} of row {row}: "
                    f"dew {found[row, at]}, transformers {wanted[row, at]}"
                )
                return Finding(False, {"tokens": tokens, "differ": int(rows.size)}, reason)
        return Finding(True, {"tokens": tokens, "differ": 0})


def _new_tokens(subject: Subject, batch: Tokens) -> int:
    """Return 64, or less where the model's positions end earlier."""
    return min(NEW_TOKENS, subject.longest - batch.input_ids.shape[1])
