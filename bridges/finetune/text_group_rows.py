"""Rows of several texts each, every text with a width of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bridges.finetune.encoded_rows import EncodedRows
from bridges.finetune.paired_rows import coarse_length
from dew.data.rows import check_indices, hashed


@dataclass(frozen=True, eq=False)
class TextGroupRows:
    """What a model of sentence vectors trains on; see `dew.data.Rows`.

    Args:
        parts: the first text of every row, the second one, and so on.
        whole: fields with one value a row, [N], by name.
    """

    parts: Sequence[EncodedRows]
    whole: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self.parts[0])

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, of all its texts, int64 [N]."""
        return np.sum([part.lengths for part in self.parts], axis=0)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the fields, in hexadecimal."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        texts = "".join(part.fingerprint for part in self.parts).encode()
        return hashed({"texts": np.frombuffer(texts, np.uint8), **self.whole})

    def width(self, indices: np.ndarray) -> tuple[int, ...]:
        """Return the widths that a batch of these rows is padded to, one a text."""
        longest = (int(part.lengths[indices].max(initial=1)) for part in self.parts)
        limits = (part.limit for part in self.parts)
        return tuple(map(coarse_length, longest, limits))

    def take(
        self, indices: np.ndarray, width: tuple[int, ...] | None = None
    ) -> dict[str, np.ndarray]:
        """Return `input_ids_0`, `attention_mask_0` and so on, and the other fields of the rows.

        Raises:
            InputRefused: an index outside 0 to N - 1.
        """
        check_indices(indices, len(self))
        widths = self.width(indices) if width is None else width
        found = {}
        for number, (part, wide) in enumerate(zip(self.parts, widths, strict=True)):
            for name, value in part.take(indices, wide).items():
                found[f"{name}_{number}"] = value
        return {**found, **{name: values[indices] for name, values in self.whole.items()}}
