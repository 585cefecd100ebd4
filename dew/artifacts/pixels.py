"""Pixels as bytes: the one rounding that metrics and trackers share."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def uint8_pixels(images: ArrayLike) -> NDArray[np.uint8]:
    """Return pixels of [-1, 1] as bytes of [0, 255].

    (x + 1) * 127.5 in float32, rounded half to even, then clipped, since a sample may leave the
    range. NaN gives 0.

    Args:
        images: any shape.
    """
    levels = np.rint((np.asarray(images, np.float32) + np.float32(1.0)) * np.float32(127.5))
    return np.nan_to_num(np.clip(levels, 0.0, 255.0), nan=0.0).astype(np.uint8)
