"""Batches of images on their way into an encoder: resized as torch does, a few at a time."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

CHUNK = 32
"""Images an encoder sees at once: what bounds its workspace, whatever the batch."""


def in_chunks(
    encode: Callable[[jax.Array], jax.Array], rows: np.ndarray, chunk: int = CHUNK
) -> np.ndarray:
    """Return `encode` of all rows, `chunk` at a time, on the host.

    A last, shorter chunk is filled up to a power of two, so that few shapes are compiled.

    Args:
        encode: [n, ...] to [n, ...], each row by itself.
        rows: [N, ...], at least one.
        chunk: how many at a time, a power of two.
    """
    device = jax.local_devices()[0]
    parts = []
    for start in range(0, len(rows), chunk):
        part = rows[start : start + chunk]
        size = 1 << (len(part) - 1).bit_length()
        filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), 0)])
        parts.append(np.asarray(encode(jax.device_put(filled, device)))[: len(part)])
    return np.concatenate(parts)


def resize_bilinear(images: jax.Array, height: int, width: int) -> jax.Array:
    """Return images of another size, each pixel a mean of its four neighbours by distance.

    No antialiasing: far reductions skip pixels.

    Args:
        images: float32 [N, H, W, C].
        height: of the result.
        width: of the result.

    Source: torch's F.interpolate(mode="bilinear", align_corners=False), whose float32 positions
    are followed step by step; a position in float64 moves a pixel by up to 1e-5.
    """
    return _resize(_resize(images, 1, height), 2, width)


def _resize(images: jax.Array, axis: int, size: int) -> jax.Array:
    if images.shape[axis] == size:
        return images
    low, high, weight = _neighbours(images.shape[axis], size)
    share = jnp.asarray(weight).reshape([-1 if i == axis else 1 for i in range(images.ndim)])
    left, right = jnp.take(images, low, axis), jnp.take(images, high, axis)
    return left * (1 - share) + right * share


def _neighbours(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each output, the two inputs beside it and the weight of the second."""
    half, scale = np.float32(0.5), np.float32(inputs) / np.float32(outputs)
    place = np.maximum(scale * (np.arange(outputs, dtype=np.float32) + half) - half, np.float32(0))
    low = np.minimum(place.astype(np.int32), inputs - 1)
    return low, np.minimum(low + 1, inputs - 1), (place - low).astype(np.float32)
