"""Bytes of another size by cubic interpolation, level for level as torch and Pillow do it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dew.nn.resize_filters import CUBIC, filter_weights

MOST_BITS, LARGEST_WEIGHT = 22, 1 << 15


def resize_bicubic(levels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Return images of another size, filtered first where they shrink.

    Columns come first and are rounded to bytes before the rows, with weights rounded to 16 bits:
    the integer arithmetic of torchvision's resize of uint8 tensors, which it equals.

    Args:
        levels: [N, H, W, C].
        height: of the result.
        width: of the result.

    Source: torchvision 0.29, resize(interpolation=BICUBIC, antialias=True); Keys 1981 with
    a = -0.5.
    """
    columns = _resize(levels, 2, width)
    return _resize(columns, 1, height)


def _resize(levels: NDArray[np.uint8], axis: int, size: int) -> NDArray[np.uint8]:
    if levels.shape[axis] == size:
        return levels
    weights, bits = _weights(levels.shape[axis], size)
    # Whole numbers below 2^53: exact in float64, whose products are the fast ones.
    sums = np.tensordot(levels.astype(np.float64), weights, (axis, 1))
    rounded = np.floor((sums + (1 << (bits - 1))) / (1 << bits))
    return np.moveaxis(np.clip(rounded, 0, 255).astype(np.uint8), -1, axis)


@lru_cache(maxsize=32)
def _weights(inputs: int, outputs: int) -> tuple[NDArray[np.float64], int]:
    """Return whole-number weights [outputs, inputs] and the bits they were shifted by."""
    weights = filter_weights(inputs, outputs, CUBIC)
    bits, largest = 0, weights.max()
    while bits < MOST_BITS and int(0.5 + largest * (1 << (bits + 1))) < LARGEST_WEIGHT:
        bits += 1
    return np.trunc(weights * (1 << bits) + np.where(weights < 0, -0.5, 0.5)), bits
