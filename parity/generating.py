"""The prompts that both sides continue, and what it is to give the same tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parity.check import Finding
from parity.inputs import batch
from parity.subject import Subject

START = 4
"""How many ids a text may begin with that tell language and task."""


Prompts = dict[str, np.ndarray]


def prompts(subject: Subject, seed: int) -> list[Prompts]:
    """Return the inputs of `generate`: one prompt, and three of uneven lengths padded on the left.

    A model that writes what it hears gets one sound, and three.
    """
    if "input_features" in subject.input_names:
        heard = batch(subject, 2, seed)["input_features"]
        return [{"input_features": heard[:1]}, {"input_features": heard}]
    length = max(2, min(16, subject.context // 3))
    ids = subject.token_stream(3 * length, seed).reshape(3, length)
    mask = np.ones_like(ids)
    mask[1, : length // 2] = 0
    mask[2, : length - 1] = 0
    padded = np.where(mask == 1, ids, subject.padding_id)
    return [
        {"input_ids": ids[:1], "attention_mask": mask[:1]},
        {"input_ids": padded, "attention_mask": mask},
    ]


def room(subject: Subject, prompt: Prompts, wanted: int) -> int:
    """Return how many new tokens to ask for: less than wanted where the positions end earlier."""
    taken = prompt["input_ids"].shape[1] if "input_ids" in prompt else START
    return min(wanted, subject.longest - taken)


def same_tokens(ours: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> Finding:
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
