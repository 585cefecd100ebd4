"""Rows of two token sequences each: what is read and what is to be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bridges.finetune.encoded_rows import Ragged
from dew.data.rows import check_indices, hashed
from dew.objectives.criteria import IGNORED

SMALLEST = 8


@dataclass(frozen=True)
class Shift:
    """How a family makes a decoder's inputs of the labels.

    Args:
        start: the id that every text begins with.
        padding: what stands in the place of labels that do not count.
        wraps: whether a row begins with its own last label, the language's id, in place of
            `start`: the labels end with it.

    Source: `_shift_right` and `shift_tokens_right` of transformers 5.24's models.
    """

    start: int
    padding: int
    wraps: bool = False

    def __call__(self, labels: np.ndarray) -> np.ndarray:
        """Return int32 [B, T] inputs of labels [B, T], padded on the right with `IGNORED`."""
        given = np.where(labels == IGNORED, self.padding, labels)
        shifted = np.empty_like(given)
        shifted[:, 1:] = given[:, :-1]
        shifted[:, 0] = self.start
        if self.wraps:
            ends = (labels != IGNORED).sum(axis=1) - 1
            shifted[:, 0] = given[np.arange(len(given)), ends]
        return shifted


def coarse_length(length: int, limit: int | None = None) -> int:
    """Return the width that `length` is padded to where a batch has several widths.

    Every pair of widths is compiled once, so each has few values: a power of two, or one and a
    half of it.

    Args:
        length: at least 1.
        limit: the most, or None.
    """
    whole = max(SMALLEST, 1 << (length - 1).bit_length())
    padded = whole * 3 // 4 if length <= whole * 3 // 4 and whole > SMALLEST else whole
    return padded if limit is None else max(length, min(padded, limit))


@dataclass(frozen=True, eq=False)
class PairedRows:
    """What a model with an encoder and a decoder trains on; see `dew.data.Rows`.

    Args:
        source: the encoder's ids.
        labels: the ids to be written, with the end; `IGNORED` stands behind them.
        shift: the decoder's inputs of the labels.
        limits: the longest widths of a batch, of sources and of labels; None for no limit.
        whole: fields with one value a row, by name.
    """

    source: Ragged
    labels: Ragged
    shift: Shift
    limits: tuple[int | None, int | None] = (None, None)
    whole: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self.source.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, read and written, int64 [N]."""
        return self.source.lengths + self.labels.lengths

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the fields, in hexadecimal."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        parts = {"source": self.source, "labels": self.labels}
        fields = {name: ragged.values for name, ragged in parts.items()}
        return hashed(
            {**fields, **{f"{name} ends": ragged.offsets for name, ragged in parts.items()}}
        )

    def width(self, indices: np.ndarray) -> tuple[int, int]:
        """Return the widths that a batch of these rows is padded to, of sources and of labels."""
        first, second = (
            coarse_length(int(part.lengths[indices].max(initial=1)), limit)
            for part, limit in zip((self.source, self.labels), self.limits, strict=True)
        )
        return first, second

    def take(
        self, indices: np.ndarray, width: tuple[int, int] | None = None
    ) -> dict[str, np.ndarray]:
        """Return `input_ids`, `attention_mask`, `labels` and `decoder_input_ids` of the rows.

        Args:
            indices: [B], each 0 to N - 1.
            width: what to pad to; None for those of these rows alone.

        Raises:
            InputRefused: an index outside 0 to N - 1.
        """
        check_indices(indices, len(self))
        wide, written = self.width(indices) if width is None else width
        real = np.arange(wide) < self.source.lengths[indices][:, None]
        labels = self.labels.padded(indices, written)
        found = {
            "input_ids": self.source.padded(indices, wide),
            "attention_mask": real.astype(np.int32),
            "labels": labels,
            "decoder_input_ids": self.shift(labels),
        }
        return {**found, **{name: values[indices] for name, values in self.whole.items()}}
