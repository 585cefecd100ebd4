"""Poolings of 3 x 3 pixels, as combinations of shifted images: XLA's windows are slow on CPUs."""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np

SIDE = 3


def greatest(x: jax.Array, stride: int = 1) -> jax.Array:
    """Return the greatest of each window.

    Args:
        x: [N, H, W, C].
        stride: 1, with a result for each pixel; or 2, for windows inside the image only.

    Returns:
        [N, H', W', C].
    """
    if stride == 1:
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    rows = reduce(jnp.maximum, _shifted(x, 1, stride))
    return reduce(jnp.maximum, _shifted(rows, 2, stride))


def averaged(x: jax.Array) -> jax.Array:
    """Return the mean of the window around each pixel; what lies past an edge does not count.

    Args:
        x: [N, H, W, C].
    """
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    rows = reduce(jnp.add, _shifted(padded, 1, 1))
    counts = np.outer(_counts(x.shape[1]), _counts(x.shape[2])).astype(np.float32)
    return reduce(jnp.add, _shifted(rows, 2, 1)) * (1 / counts[..., None])


def _shifted(x: jax.Array, axis: int, stride: int) -> list[jax.Array]:
    reach = x.shape[axis] - SIDE + 1
    return [jax.lax.slice_in_dim(x, i, i + reach, stride, axis) for i in range(SIDE)]


def _counts(side: int) -> np.ndarray:
    """Return how many pixels of a line lie in the window around each of them."""
    places = np.arange(side)
    return np.minimum(places + 1, side - 1) - np.maximum(places - 1, 0) + 1
