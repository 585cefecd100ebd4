"""Convolutions of 3 x 3 with a third fewer multiplications than they seem to need, for CPUs."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

TILE, TAPS = 4, 3
ROWS_AT_ONCE = 8
"""Rows of a result that are made together: what they need stays in a processor's cache."""

# Lavin and Gray's F(4, 3): four results of three taps from six products instead of twelve.
OF_INPUTS = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    np.float32,
)
OF_KERNELS = np.array(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ],
    np.float32,
)
OF_RESULTS = np.array(
    [
        [1, 1, 1, 1, 1, 0],
        [0, 1, -1, 2, -2, 0],
        [0, 1, 1, 4, 4, 0],
        [0, 1, -1, 8, -8, 1],
    ],
    np.float32,
)


def winograd(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return the convolution of images whose edges are cut off, as matrix products.

    Along a row, six inputs give four results with half the multiplications; down the columns the
    taps stay as they are. In float32 it rounds about four times as much as the plain sum does.

    Args:
        x: float32 [N, H, W, C].
        kernel: float32 [3, 3, C, F].

    Returns:
        float32 [N, H - 2, W - 2, F].

    Source: Lavin and Gray 2016, arXiv:1509.09308, along one axis.
    """
    count, height, width = x.shape[0], x.shape[1] - TAPS + 1, x.shape[2] - TAPS + 1
    bands, tiles = -(-height // ROWS_AT_ONCE), -(-width // TILE)
    below, beside = bands * ROWS_AT_ONCE - height, tiles * TILE - width
    padded = jnp.pad(x, ((0, 0), (0, below), (0, beside), (0, 0)))
    moved = jnp.einsum("pw,hwcf->phcf", OF_KERNELS, kernel, precision="highest")
    products = moved.reshape(len(OF_KERNELS), -1, kernel.shape[-1])
    sizes = (1, ROWS_AT_ONCE + TAPS - 1, padded.shape[2], padded.shape[3])

    def band(place: jax.Array) -> jax.Array:
        start = (place // bands, (place % bands) * ROWS_AT_ONCE, 0, 0)
        return _band(jax.lax.dynamic_slice(padded, start, sizes)[0], products)

    made = jax.lax.map(band, jnp.arange(count * bands))
    whole = made.reshape(count, bands * ROWS_AT_ONCE, tiles * TILE, kernel.shape[-1])
    return whole[:, :height, :width]


def _band(rows: jax.Array, products: jax.Array) -> jax.Array:
    """Return `ROWS_AT_ONCE` rows of results [R, W, F] of two rows more of inputs."""
    reach = rows.shape[1] - len(OF_INPUTS) + 1
    moved = _combined(OF_INPUTS, [rows[:, i : i + reach : TILE] for i in range(len(OF_INPUTS))])
    parts = []
    for part, product in zip(moved, products, strict=True):
        stacked = [part[i : i + ROWS_AT_ONCE] for i in range(TAPS)]
        columns = jnp.concatenate(stacked, -1)
        parts.append(columns.reshape(-1, columns.shape[-1]) @ product)
    results = jnp.stack(_combined(OF_RESULTS, parts), 1)
    return results.reshape(ROWS_AT_ONCE, -1, results.shape[-1])


def _combined(matrix: NDArray[np.float32], parts: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the sum of `parts` for each row of a matrix, without the products by 0."""
    sums = []
    for row in matrix:
        terms = [float(weight) * part for weight, part in zip(row, parts, strict=True) if weight]
        sums.append(sum(terms[1:], terms[0]))
    return sums
