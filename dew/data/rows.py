"""Rows of tokens that a stream gathers batches from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from dew.errors import InputRefused

HASH_BYTES = 1 << 24


class Rows(Protocol):
    """Random access to rows: what `RowStream` and `finite_batches` read."""

    @property
    def fingerprint(self) -> str:
        """A hash of the rows' contents; a saved position holds only in rows of the same one."""
        ...

    def __len__(self) -> int:
        """Return the number of rows, N."""
        ...

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return the fields of the rows at `indices` [B], each 0 to N - 1, as new arrays."""
        ...


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Rows of token ids held in memory.

    Args:
        tokens: int32 [N, L+1]; the model reads the first L and predicts the last L.
        segments: int32 [N, L+1], the number of the document within its row from 1, 0 at padding;
            None when every row is one whole document.
        weights: float32 [N, L+1], the weight of each token as a target; None for 1 everywhere.

    Raises:
        InputRefused: a shape or dtype other than these.
    """

    tokens: np.ndarray
    segments: np.ndarray | None = None
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2 or self.tokens.shape[1] < 2:
            raise InputRefused(
                f"TokenRows: tokens of shape {self.tokens.shape}; expected [N, L+1] with L >= 1."
            )
        for name, dtype in (("tokens", "int32"), ("segments", "int32"), ("weights", "float32")):
            field = getattr(self, name)
            if field is not None and (field.dtype != dtype or field.shape != self.tokens.shape):
                raise InputRefused(
                    f"TokenRows: {name} are {field.dtype} {field.shape}; "
                    f"expected {dtype} {self.tokens.shape}."
                )

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self.tokens)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return `text`, and where there are any `segments` and `weights`, each [B, L+1].

        Raises:
            InputRefused: an index outside 0 to N - 1; a negative one never wraps.
        """
        check_indices(indices, len(self))
        return {key: field[indices] for key, field in self._fields().items()}

    def select(self, indices: np.ndarray) -> TokenRows:
        """Return the rows at `indices` [B] as rows of their own."""
        batch = self.take(indices)
        return TokenRows(batch["text"], batch.get("segments"), batch.get("weights"))

    @property
    def targets(self) -> np.ndarray:
        """Which tokens are trained on: bool [N, L+1].

        A target stands after a token of its own document and has a weight above 0.
        """
        counted = np.zeros(self.tokens.shape, bool)
        counted[:, 1:] = True
        if self.segments is not None:
            counted[:, 1:] = self.segments[:, 1:] == self.segments[:, :-1]
            counted &= self.segments != 0
        if self.weights is not None:
            counted &= self.weights > 0
        return counted

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the fields' names, shapes and bytes."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return hashed(self._fields())

    def _fields(self) -> dict[str, np.ndarray]:
        fields = {"text": self.tokens, "segments": self.segments, "weights": self.weights}
        return {key: field for key, field in fields.items() if field is not None}


def check_indices(indices: np.ndarray, rows: int) -> None:
    """Refuse row numbers outside 0 to `rows` - 1: NumPy would wrap the negative ones.

    Raises:
        InputRefused: there is one.
    """
    if len(indices) and (indices.min() < 0 or indices.max() >= rows):
        raise InputRefused(
            f"rows: asked for rows {indices.min()} to {indices.max()}; there are {rows}, from 0."
        )


def hashed(fields: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of arrays by name: names, dtypes, shapes and little-endian bytes."""
    digest = hashlib.sha256()
    for name, field in fields.items():
        digest.update(f"{name} {field.dtype.name} {field.shape}\n".encode())
        flat = np.ascontiguousarray(field, field.dtype.newbyteorder("<")).reshape(-1)
        step = HASH_BYTES // field.itemsize
        for start in range(0, flat.size, step):
            digest.update(flat[start : start + step].data)
    return digest.hexdigest()
