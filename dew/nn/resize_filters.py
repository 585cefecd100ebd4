"""The weights of pixels in a resized line that is filtered first where it shrinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SHARPNESS = -0.5


class Filter(NamedTuple):
    """A curve of distances in pixels, and the distance from which on it is 0."""

    curve: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    reach: float


def filter_weights(
    inputs: int, outputs: int, filter: Filter, *, single: bool = False
) -> NDArray[np.float64]:
    """Return the weights [outputs, inputs] of a resized line, each row adding up to 1.

    Args:
        inputs: pixels of the line.
        outputs: pixels of the result.
        filter: `CUBIC` or `TRIANGLE`; stretched where the line shrinks, so that no pixel is
            skipped.
        single: whether places are rounded to float32 as torch rounds them; Pillow does not.

    Source: Pillow's Image.resize, and with `single` torch's interpolate(antialias=True).
    """
    kind = np.float32 if single else np.float64
    scale = float(kind(inputs) / kind(outputs))
    stretch = max(scale, 1.0)
    centres = (scale * (np.arange(outputs) + 0.5)).astype(kind).astype(np.float64)
    first = np.maximum((centres - filter.reach * stretch + 0.5).astype(np.int64), 0)
    stop = np.minimum((centres + filter.reach * stretch + 0.5).astype(np.int64), inputs)
    places = np.arange(inputs)
    apart = (places[None] - centres[:, None]).astype(kind).astype(np.float64) + 0.5
    weights = filter.curve((apart * float(kind(1 / stretch))).astype(kind).astype(np.float64))
    weights[(places[None] < first[:, None]) | (places[None] >= stop[:, None])] = 0
    return weights / weights.sum(1, keepdims=True)


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = np.abs(x)
    near = ((SHARPNESS + 2) * x - (SHARPNESS + 3)) * x * x + 1
    far = SHARPNESS * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < CUBIC.reach, far, 0.0))


def _triangle(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(1 - np.abs(x), 0.0)


CUBIC = Filter(_cubic, 2.0)
"""Keys 1981 with a = -0.5."""
TRIANGLE = Filter(_triangle, 1.0)
