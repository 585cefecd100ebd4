"""Enlarging, shrinking and warping images, in torch's layout [N, C, ...].

A resize along one axis is a matrix of a few weights a row; several axes are one after another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.torch.ops.operator import operator


def _sizes(x: jax.Array, output_size: Any, scales: Any) -> tuple[tuple[int, ...], tuple]:
    """Return the wanted sizes, and the scale factors that were given, None where none was."""
    count = x.ndim - 2
    if output_size is not None:
        return tuple(int(part) for part in output_size), (None,) * count
    sizes = tuple(math.floor(size * scale) for size, scale in zip(x.shape[2:], scales, strict=True))
    return sizes, tuple(scales)


def _ratio(size: int, wanted: int, scale: float | None, align_corners: bool) -> float:
    """Return input pixels an output pixel."""
    if align_corners:
        return (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    return 1 / scale if scale else size / wanted


def _centres(size: int, wanted: int, scale: float | None, align_corners: bool) -> np.ndarray:
    ratio = _ratio(size, wanted, scale, align_corners)
    places = np.arange(wanted, dtype=np.float32)
    if align_corners:
        return (places * np.float32(ratio)).astype(np.float64)
    return (places.astype(np.float64) + 0.5) * ratio - 0.5


def _linear(size: int, wanted: int, scale: float | None, align_corners: bool) -> np.ndarray:
    centre = np.maximum(_centres(size, wanted, scale, align_corners), 0)
    low = np.minimum(np.floor(centre).astype(int), size - 1)
    high, share = np.minimum(low + 1, size - 1), np.minimum(centre - low, 1.0)
    matrix = np.zeros((wanted, size))
    np.add.at(matrix, (np.arange(wanted), low), 1 - share)
    np.add.at(matrix, (np.arange(wanted), high), share)
    return matrix


def _cubic_weight(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys's cubic convolution kernel."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _cubic(size: int, wanted: int, scale: float | None, align_corners: bool) -> np.ndarray:
    centre = _centres(size, wanted, scale, align_corners)
    low = np.floor(centre).astype(int)
    matrix = np.zeros((wanted, size))
    for step in range(-1, 3):
        weight = _cubic_weight(centre - (low + step), -0.75)
        np.add.at(matrix, (np.arange(wanted), np.clip(low + step, 0, size - 1)), weight)
    return matrix


def _smooth(
    reach: float, kernel: Any, size: int, wanted: int, scale: float | None, align_corners: bool
) -> np.ndarray:
    """Return weights of a kernel that is widened as the image shrinks: no aliases."""
    ratio = _ratio(size, wanted, scale, align_corners)
    widen = max(ratio, 1.0)
    matrix = np.zeros((wanted, size))
    for row in range(wanted):
        centre = ratio * (row + 0.5)
        first = max(int(centre - reach * widen + 0.5), 0)
        last = min(int(centre + reach * widen + 0.5), size)
        weights = kernel((np.arange(first, last) + 0.5 - centre) / widen)
        matrix[row, first:last] = weights / weights.sum()
    return matrix


def _triangle(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(distance), 0)


_KINDS = {
    "linear": _linear,
    "cubic": _cubic,
    "linear_aa": partial(_smooth, 1.0, _triangle),
    "cubic_aa": partial(_smooth, 2.0, partial(_cubic_weight, a=-0.5)),
}


def _resized(x: jax.Array, sizes: Sequence[int], scales: Any, align: bool, kind: str) -> jax.Array:
    for axis, (wanted, scale) in enumerate(zip(sizes, scales, strict=True), start=2):
        if wanted == x.shape[axis] and not scale:
            continue
        matrix = _KINDS[kind](x.shape[axis], wanted, scale, align)
        weights = jnp.asarray(matrix.T, x.dtype)
        x = jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ weights, -1, axis)
    return x


def _enter(names: str, kind: str, axes: int) -> None:
    """Enter a resize under its two forms: sizes or factors in lists, or one by one."""

    def by_list(x: jax.Array, output_size: Any, align_corners: bool, scale_factors: Any = None):
        sizes, scales = _sizes(x, output_size, scale_factors)
        return _resized(x, sizes, scales, align_corners, kind)

    def one_by_one(x: jax.Array, output_size: Any, align_corners: bool, *scales: Any):
        given = scales if len(scales) == axes else (None,) * axes
        return _resized(x, [int(part) for part in output_size], given, align_corners, kind)

    operator(f"{names}.vec")(by_list)
    operator(f"{names}.default")(one_by_one)


_enter("upsample_linear1d", "linear", 1)
_enter("upsample_bilinear2d", "linear", 2)
_enter("upsample_trilinear3d", "linear", 3)
_enter("upsample_bicubic2d", "cubic", 2)
_enter("_upsample_bilinear2d_aa", "linear_aa", 2)
_enter("_upsample_bicubic2d_aa", "cubic_aa", 2)


def _nearest(x: jax.Array, sizes: Sequence[int], scales: Any, shift: float) -> jax.Array:
    for axis, (wanted, scale) in enumerate(zip(sizes, scales, strict=True), start=2):
        ratio = np.float32(1 / scale if scale else x.shape[axis] / wanted)
        places = np.floor((np.arange(wanted, dtype=np.float32) + np.float32(shift)) * ratio)
        x = jnp.take(x, np.minimum(places.astype(int), x.shape[axis] - 1), axis=axis)
    return x


def _enter_nearest(name: str, axes: int, shift: float) -> None:
    def by_list(x: jax.Array, output_size: Any, scale_factors: Any = None) -> jax.Array:
        return _nearest(x, *_sizes(x, output_size, scale_factors), shift)

    def one_by_one(x: jax.Array, output_size: Any, *scales: Any) -> jax.Array:
        given = scales if len(scales) == axes else (None,) * axes
        return _nearest(x, [int(part) for part in output_size], given, shift)

    operator(f"{name}.vec")(by_list)
    operator(f"{name}.default")(one_by_one)


for _axes in (1, 2, 3):
    _enter_nearest(f"upsample_nearest{_axes}d", _axes, 0.0)
    _enter_nearest(f"_upsample_nearest_exact{_axes}d", _axes, 0.5)


def _unnormalised(place: jax.Array, size: int, align_corners: bool) -> jax.Array:
    if align_corners:
        return (place + 1) / 2 * (size - 1)
    return ((place + 1) * size - 1) / 2


def _reflected(place: jax.Array, low: float, high: float) -> jax.Array:
    span = high - low
    if span == 0:
        return jnp.zeros_like(place)
    away = jnp.abs(place - low)
    turns, rest = jnp.floor(away / span), jnp.fmod(away, span)
    return jnp.where(turns % 2 == 0, rest + low, span - rest + low)


def _bounded(place: jax.Array, size: int, mode: int, align_corners: bool) -> jax.Array:
    """Bring a place into the image: 0 leaves it out, 1 takes the border, 2 reflects."""
    if mode == 2:
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        place = _reflected(place, low, high)
    return place if mode == 0 else jnp.clip(place, 0, size - 1)


def _pixels(image: jax.Array, y: jax.Array, x: jax.Array) -> jax.Array:
    """Return image [C, H, W] at whole places [...], 0 outside."""
    height, width = image.shape[1:]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    rows = jnp.clip(y, 0, height - 1).astype(jnp.int32)
    columns = jnp.clip(x, 0, width - 1).astype(jnp.int32)
    return jnp.where(inside, image[:, rows, columns], 0)


def _sampled(image: jax.Array, grid: jax.Array, mode: int, padding: int, align: bool) -> jax.Array:
    height, width = image.shape[1:]
    x, y = (_unnormalised(grid[..., i], size, align) for i, size in enumerate((width, height)))
    if mode == 2:
        return _bicubic(image, y, x, padding, align)
    x, y = _bounded(x, width, padding, align), _bounded(y, height, padding, align)
    if mode == 1:
        return _pixels(image, jnp.round(y), jnp.round(x))
    left, top = jnp.floor(x), jnp.floor(y)
    total: Any = 0
    for down in (0, 1):
        for right in (0, 1):
            weight = jnp.abs(1 - down - (y - top)) * jnp.abs(1 - right - (x - left))
            total = total + weight * _pixels(image, top + down, left + right)
    return total


def _keys(share: jax.Array) -> list[jax.Array]:
    """Return the four weights of cubic convolution at a fraction of a pixel."""
    a = -0.75

    def near(d: jax.Array) -> jax.Array:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: jax.Array) -> jax.Array:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(share + 1), near(share), near(1 - share), far(2 - share)]


def _bicubic(image: jax.Array, y: jax.Array, x: jax.Array, padding: int, align: bool) -> jax.Array:
    height, width = image.shape[1:]
    top, left = jnp.floor(y), jnp.floor(x)
    rows, columns = _keys(y - top), _keys(x - left)
    total: Any = 0
    for i, down in enumerate(rows):
        for j, right in enumerate(columns):
            place_y = _bounded(top + i - 1, height, padding, align)
            place_x = _bounded(left + j - 1, width, padding, align)
            total = total + down * right * _pixels(image, place_y, place_x)
    return total


@operator("grid_sampler_2d.default", "grid_sampler.default")
def _grid_sampler(
    x: jax.Array, grid: jax.Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> jax.Array:
    def one(image: jax.Array, places: jax.Array) -> jax.Array:
        return _sampled(image, places, interpolation_mode, padding_mode, align_corners)

    return jax.vmap(one)(x, grid)
