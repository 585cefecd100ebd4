"""The named, invertible moves between a torch tensor and dew's leaves of one layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Turn = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Move:
    """How one torch tensor becomes dew's leaf, and back.

    Both directions transpose and reshape only, so that numpy answers with a view and the one copy
    is made where the result is stored. A tensor that holds several leaves side by side is cut into
    as many parts along `axis` before `into`, and joined along it after `out`.

    Attributes:
        into: a torch tensor, or one part of it, to dew's leaf of one layer.
        out: the inverse of `into`.
        axis: the axis along which a tensor of several leaves is cut.
        groups: how many times the leaves stand in turn along that axis, each time a part of each.
    """

    into: Turn
    out: Turn
    axis: int = 0
    groups: int = 1

    def cut(self, whole: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        """Return the parts of a tensor, `sizes` long along `axis`."""
        axis, ends = self.axis + 1, np.cumsum(sizes) // self.groups
        turns = whole.reshape(*whole.shape[: self.axis], self.groups, -1, *whole.shape[axis:])
        parts = np.split(turns, ends[:-1], axis=axis)
        return [
            part.reshape(*whole.shape[: self.axis], size, *whole.shape[axis:])
            for part, size in zip(parts, sizes, strict=True)
        ]

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the tensor whose parts these are."""
        before, after = parts[0].shape[: self.axis], parts[0].shape[self.axis + 1 :]
        turns = [part.reshape(*before, self.groups, -1, *after) for part in parts]
        return np.concatenate(turns, axis=self.axis + 1).reshape(*before, -1, *after)


KEEP = Move(into=lambda w: w, out=lambda w: w)
"""The same axes on both sides: embeddings, scales, plain biases, Conv1D kernels."""

TRANSPOSE = Move(into=lambda w: w.T, out=lambda k: k.T)
"""A torch Linear [outputs, inputs] to dew [inputs, outputs]."""

TAPS = Move(into=lambda w: w.transpose(2, 1, 0), out=lambda k: k.transpose(2, 1, 0))
"""A torch convolution along time [outputs, inputs, size] to dew [size, inputs, outputs]."""


def split_by(size: int) -> Move:
    """A torch Linear [heads * size, inputs] to dew [inputs, heads, size], for any heads."""
    return Move(
        into=lambda w: w.T.reshape(w.shape[1], w.shape[0] // size, size),
        out=lambda k: k.reshape(k.shape[0], k.shape[1] * k.shape[2]).T,
    )


def in_turn(move: Move, groups: int) -> Move:
    """`move`, for leaves that stand in turn in one tensor: the first head of each, the second..."""
    return Move(move.into, move.out, move.axis, groups)


def split_heads(heads: int) -> Move:
    """A torch Linear [heads * size, inputs] to dew [inputs, heads, size]."""
    return Move(
        into=lambda w: w.T.reshape(w.shape[1], heads, w.shape[0] // heads),
        out=lambda k: k.reshape(k.shape[0], k.shape[1] * k.shape[2]).T,
    )


def merge_heads(heads: int) -> Move:
    """A torch Linear [outputs, heads * size] to dew [heads, size, outputs]."""
    return Move(
        into=lambda w: w.T.reshape(heads, w.shape[1] // heads, w.shape[0]),
        out=lambda k: k.reshape(k.shape[0] * k.shape[1], k.shape[2]).T,
    )


def split_bias(heads: int) -> Move:
    """A torch bias [heads * size] to dew [heads, size]."""
    return Move(
        into=lambda b: b.reshape(heads, b.shape[0] // heads),
        out=lambda b: b.reshape(b.shape[0] * b.shape[1]),
    )


def split_qkv(heads: int) -> Move:
    """GPT-2's Conv1D [inputs, 3 * heads * size] to query, key and value [inputs, heads, size]."""
    return Move(
        into=lambda w: w.reshape(w.shape[0], heads, w.shape[1] // heads),
        out=lambda k: k.reshape(k.shape[0], k.shape[1] * k.shape[2]),
        axis=1,
    )


def merge_rows(heads: int) -> Move:
    """GPT-2's Conv1D [heads * size, outputs] to dew [heads, size, outputs]."""
    return Move(
        into=lambda w: w.reshape(heads, w.shape[0] // heads, w.shape[1]),
        out=lambda k: k.reshape(k.shape[0] * k.shape[1], k.shape[2]),
    )
