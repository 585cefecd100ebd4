"""Batches: of inputs, of tokens, and of documents, packed for dew and one to a row for torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tokens:
    """A batch of token ids [N, L] and its mask [N, L], 1 where a token is real."""

    input_ids: np.ndarray
    attention_mask: np.ndarray


@dataclass(frozen=True)
class Directed:
    """Inputs by name, and for each output the array that it is multiplied with and summed.

    The sum is a loss whose gradient is that of every output at once.
    """

    inputs: Mapping[str, np.ndarray]
    ways: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Documents:
    """Token sequences that do not see each other, for rows of `length` + 1 tokens."""

    sequences: tuple[np.ndarray, ...]
    length: int


def packed(documents: Documents) -> dict[str, np.ndarray]:
    """Return dew's batch: `text` and `segments`, int32 [B, L + 1], two documents to a row."""
    width = documents.length + 1
    pairs = [documents.sequences[at : at + 2] for at in range(0, len(documents.sequences), 2)]
    text = np.zeros((len(pairs), width), np.int32)
    segments = np.zeros((len(pairs), width), np.int32)
    for row, pair in enumerate(pairs):
        start = 0
        for number, sequence in enumerate(pair, 1):
            text[row, start : start + len(sequence)] = sequence
            segments[row, start : start + len(sequence)] = number
            start += len(sequence)
    return {"text": text, "segments": segments}


def single_rows(documents: Documents) -> Tokens:
    """Return torch's batch: one document to a row, padded on the right."""
    width = max(len(sequence) for sequence in documents.sequences)
    ids = np.zeros((len(documents.sequences), width), np.int32)
    mask = np.zeros_like(ids)
    for row, sequence in enumerate(documents.sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return Tokens(ids, mask)


def unpacked(batch: Mapping[str, np.ndarray]) -> Documents:
    """Return the documents of packed rows, in order: the inverse of `packed`."""
    text = batch["text"]
    segments = batch.get("segments", np.ones_like(text))
    sequences = [
        row[numbers == number]
        for row, numbers in zip(text, segments, strict=True)
        for number in np.unique(numbers[numbers != 0])
    ]
    return Documents(tuple(sequences), text.shape[1] - 1)
