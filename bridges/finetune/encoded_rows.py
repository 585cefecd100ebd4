"""Rows of token ids of unequal length, with what is to be learnt beside each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dew.data.rows import check_indices, hashed
from dew.inference.row_outputs import padded_length


@dataclass(frozen=True)
class Ragged:
    """One field with a sequence of its own length for each row, end to end.

    Args:
        values: [the sum of the lengths].
        offsets: int64 [N + 1], where each row begins.
        padding: what stands behind a row that is shorter than the batch.
    """

    values: np.ndarray
    offsets: np.ndarray
    padding: int | float = 0

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], dtype: str = "int32", padding: float = 0) -> Ragged:
        """Return the field of these sequences."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = np.fromiter((v for row in rows for v in row), dtype, int(offsets[-1]))
        return cls(values, offsets, padding)

    def padded(self, indices: np.ndarray, width: int) -> np.ndarray:
        """Return the rows at `indices` [B], [B, width]."""
        out = np.full((len(indices), width), self.padding, self.values.dtype)
        for place, row in enumerate(indices):
            part = self.values[self.offsets[row] : self.offsets[row + 1]]
            out[place, : len(part)] = part
        return out

    @property
    def lengths(self) -> np.ndarray:
        """How long each row is, int64 [N]."""
        return np.diff(self.offsets)


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """What a model with a head trains on; see `dew.data.Rows`.

    Args:
        ids: the tokens.
        beside: further fields that go token by token, such as `token_type_ids` or a tagger's
            `labels`, by name.
        whole: fields with one value or one vector a row, [N, ...], by name.
        limit: the longest width of a batch; None for no limit.
    """

    ids: Ragged
    beside: Mapping[str, Ragged] = field(default_factory=dict)
    whole: Mapping[str, np.ndarray] = field(default_factory=dict)
    limit: int | None = None

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self.ids.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, int64 [N]."""
        return self.ids.lengths

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the fields, in hexadecimal."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        fields = {"input_ids": self.ids.values, "offsets": self.ids.offsets}
        fields |= {name: ragged.values for name, ragged in self.beside.items()}
        return hashed({**fields, **self.whole})

    def width(self, indices: np.ndarray) -> int:
        """Return the width that a batch of these rows is padded to: one of a few."""
        return padded_length(int(self.lengths[indices].max(initial=1)), self.limit)

    def take(self, indices: np.ndarray, width: int | None = None) -> dict[str, np.ndarray]:
        """Return `input_ids`, `attention_mask` [B, width] and the other fields of the rows.

        Args:
            indices: [B], each 0 to N - 1.
            width: what to pad to; None for that of these rows alone.

        Raises:
            InputRefused: an index outside 0 to N - 1.
        """
        check_indices(indices, len(self))
        wide = self.width(indices) if width is None else width
        real = np.arange(wide) < self.lengths[indices][:, None]
        found = {
            "input_ids": self.ids.padded(indices, wide),
            "attention_mask": real.astype(np.int32),
        }
        found |= {name: ragged.padded(indices, wide) for name, ragged in self.beside.items()}
        return {**found, **{name: values[indices] for name, values in self.whole.items()}}

    def select(self, indices: np.ndarray) -> EncodedRows:
        """Return the rows at `indices` as rows of their own."""

        def kept(ragged: Ragged) -> Ragged:
            parts = [ragged.values[ragged.offsets[i] : ragged.offsets[i + 1]] for i in indices]
            offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
            joined = np.concatenate(parts) if parts else ragged.values[:0]
            return Ragged(joined, offsets.astype(np.int64), ragged.padding)

        return EncodedRows(
            kept(self.ids),
            {name: kept(ragged) for name, ragged in self.beside.items()},
            {name: values[indices] for name, values in self.whole.items()},
            self.limit,
        )
