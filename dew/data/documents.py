"""Tokenized documents, kept as one flat array and where each ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dew.errors import InputRefused


@dataclass(frozen=True, eq=False)
class Documents:
    """The token ids of D documents, end to end.

    Args:
        tokens: int32 [T].
        offsets: int64 [D+1], rising from 0 to T; document d is tokens[offsets[d]:offsets[d+1]].
        weights: float32 [T], the weight of each token as a target; None for 1 everywhere.

    Raises:
        InputRefused: offsets that do not cover the tokens in order.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        covered = len(self.offsets) and self.offsets[0] == 0
        if not covered or self.offsets[-1] != len(self.tokens) or (np.diff(self.offsets) < 0).any():
            raise InputRefused(
                f"documents: offsets must rise from 0 to the {len(self.tokens)} tokens."
            )
        if self.weights is not None and len(self.weights) != len(self.tokens):
            raise InputRefused(
                f"documents: {len(self.weights)} weights for {len(self.tokens)} tokens."
            )

    @classmethod
    def joined(cls, documents: Iterable[Sequence[int] | np.ndarray]) -> Documents:
        """Return the documents of an iterable of token ids."""
        parts = [np.asarray(document, np.int32) for document in documents]
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return cls(np.concatenate(parts) if parts else np.zeros(0, np.int32), offsets)

    def __len__(self) -> int:
        """Return the number of documents, D."""
        return len(self.offsets) - 1

    def __getitem__(self, document: int) -> np.ndarray:
        """Return the token ids of one document, a view."""
        return self.tokens[self.offsets[document] : self.offsets[document + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document, int64 [D]."""
        return np.diff(self.offsets)

    def select(self, indices: np.ndarray) -> Documents:
        """Return the documents at `indices`, in that order."""
        lengths = self.lengths[indices]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[indices] - offsets[:-1], lengths)
        weights = None if self.weights is None else self.weights[places]
        return Documents(self.tokens[places], offsets, weights)
