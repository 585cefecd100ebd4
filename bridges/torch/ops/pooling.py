"""Pooling over windows, in torch's layout [N, C, ...] or [C, ...]."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.torch.ops.operator import dtype_of, operator, spread


def _outputs(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> int:
    """Return how many windows torch makes along an axis."""
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    # The last window has to start within the input or its left padding.
    return count - 1 if ceil_mode and (count - 1) * stride >= size + pad else count


def _places(size: int, kernel: int, stride: int, pad: int, dilation: int, count: int) -> np.ndarray:
    """Return the place in the input of each element of each window, [count, kernel]."""
    return np.arange(count)[:, None] * stride - pad + np.arange(kernel) * dilation


def _padded(options: tuple, sizes: tuple[int, ...]) -> tuple[list[tuple], tuple]:
    """Return size, kernel, stride, padding, dilation and number of windows, an axis each.

    And by how much each axis is padded at its two ends so that all windows fit.
    """
    kernel, stride, padding, dilation, ceil_mode = options
    found, widths = [], []
    for parts in zip(sizes, kernel, stride, padding, dilation, strict=True):
        size, window, step, pad, gap = parts
        count = _outputs(*parts, ceil_mode)
        reach = (count - 1) * step + gap * (window - 1) + 1
        found.append((*parts, count))
        widths.append((pad, max(reach - size - pad, 0)))
    return found, tuple(widths)


def _lowest(dtype: Any) -> np.ndarray:
    low = -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min
    return np.asarray(low, dtype)


def _max_pool(x: jax.Array, options: tuple) -> tuple[jax.Array, jax.Array]:
    """Return the largest of each window and its place in the flattened input.

    Of equals torch takes the first place, row by row, and of NaN the last. Along one axis after
    the other, from the last, the same places come out as from whole windows.
    """
    sizes = x.shape[-len(options[0]) :]
    first = x.ndim - len(sizes)
    parts, widths = _padded(options, sizes)
    place = jnp.zeros(x.shape, jnp.int32)
    jump = 1
    for axis in reversed(range(len(sizes))):
        here = jnp.arange(sizes[axis], dtype=jnp.int32) * jump
        place = place + here.reshape(-1, *[1] * (len(sizes) - 1 - axis))
        jump *= sizes[axis]
        x, place = _largest_along(x, place, first + axis, parts[axis], widths[axis])
    return x, place.astype(dtype_of("int64"))


def _largest_along(
    x: jax.Array, place: jax.Array, axis: int, parts: tuple, width: tuple[int, int]
) -> tuple[jax.Array, jax.Array]:
    """Return the largest of each window along one axis, and what `place` holds there."""
    size, window, step, pad, gap, count = parts
    widths = [(0, 0)] * axis + [width] + [(0, 0)] * (x.ndim - axis - 1)
    values = jnp.pad(x, widths, constant_values=_lowest(x.dtype))
    place = jnp.pad(place, widths)
    where = _places(size, window, step, pad, gap, count)
    within = ((where >= 0) & (where < size)).reshape(-1, window, *[1] * (x.ndim - axis - 1))

    def part(array: jax.Array, number: int) -> jax.Array:
        start = number * gap
        stop = start + (count - 1) * step + 1
        return jax.lax.slice_in_dim(array, start, stop, step, axis)

    best, found, met = part(values, 0), part(place, 0), within[:, 0]
    for number in range(1, window):
        value, inside = part(values, number), within[:, number]
        take = value > best
        if jnp.issubdtype(x.dtype, jnp.floating):
            take = take | jnp.isnan(value)
        # A window of nothing but the lowest value has its first place within the input.
        take = (take | ~met) & inside
        best = jnp.where(take, value, best)
        found = jnp.where(take, part(place, number), found)
        met = met | inside
    return best, found


def _largest(windows: jax.Array, flat: Any) -> tuple[jax.Array, jax.Array]:
    """Return the first of the largest along the last axis, or the last NaN, and its place."""
    best = jnp.argmax(windows, axis=-1, keepdims=True)
    if jnp.issubdtype(windows.dtype, jnp.floating):
        wrong = jnp.isnan(windows)
        last = windows.shape[-1] - 1 - jnp.argmax(wrong[..., ::-1], axis=-1, keepdims=True)
        best = jnp.where(jnp.any(wrong, axis=-1, keepdims=True), last, best)
    values = jnp.take_along_axis(windows, best, axis=-1)[..., 0]
    found = jnp.take_along_axis(jnp.broadcast_to(flat, windows.shape), best, axis=-1)[..., 0]
    return values, found.astype(dtype_of("int64"))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _max_pool_values(x: jax.Array, options: tuple) -> jax.Array:
    """Return the largest of each window in one pass."""
    kernel, stride, _, dilation, _ = options
    parts, widths = _padded(options, x.shape[-len(kernel) :])
    ones = (1,) * (x.ndim - len(kernel))
    pooled = jax.lax.reduce_window(
        x,
        _lowest(x.dtype),
        jax.lax.max,
        ones + kernel,
        ones + stride,
        ((0, 0),) * len(ones) + widths,
        window_dilation=ones + dilation,
    )
    # Where the input ends before the padding does, a window too many would fit.
    return pooled[(..., *(slice(0, part[-1]) for part in parts))]


@_max_pool_values.defjvp
def _max_pool_values_jvp(options: tuple, primals: tuple, tangents: tuple) -> tuple:
    # The derivative goes to one of equal values, which XLA's own may take from the other end.
    return jax.jvp(lambda x: _max_pool(x, options)[0], primals, tangents)


def _both(axes: int) -> Any:
    def pool(
        x: jax.Array,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        kernel = spread(kernel_size, axes)
        step = spread(stride, axes) if stride else kernel
        return _MaxPool(x, (kernel, step, spread(padding, axes), spread(dilation, axes), ceil_mode))

    return pool


class _MaxPool:
    """Values and places of a max pooling, each computed when it is asked for."""

    def __init__(self, x: jax.Array, options: tuple):
        self._x, self._options = x, options

    def __getitem__(self, number: int) -> jax.Array:
        if number:
            return _max_pool(self._x, self._options)[1]
        return _max_pool_values(self._x, self._options)

    def __iter__(self) -> Any:
        return iter((self[0], self[1]))


operator("max_pool2d_with_indices.default")(_both(2))
operator("max_pool3d_with_indices.default")(_both(3))


@operator("max_pool2d.default")
def _max_pool2d(x: jax.Array, *options: Any, **named: Any) -> jax.Array:
    return _both(2)(x, *options, **named)[0]


@operator("max_pool1d.default")
def _max_pool1d(x: jax.Array, *options: Any, **named: Any) -> jax.Array:
    return _both(1)(x, *options, **named)[0]


@operator("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _avg_pool(
    x: jax.Array,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    axes = len(kernel_size)
    kernel = spread(kernel_size, axes)
    stride = spread(stride, axes) if stride else kernel
    padding = spread(padding, axes)
    sizes = x.shape[-axes:]
    counts = [
        _outputs(size, window, step, pad, 1, ceil_mode)
        for size, window, step, pad in zip(sizes, kernel, stride, padding, strict=True)
    ]
    widths = [(0, 0)] * (x.ndim - axes)
    divisor: Any = np.ones(())
    for size, window, step, pad, count in zip(sizes, kernel, stride, padding, counts, strict=True):
        reach = (count - 1) * step + window
        widths.append((pad, max(reach - size - pad, 0)))
        start = np.arange(count) * step - pad
        stop = np.minimum(start + window, size + pad)
        within = np.minimum(stop, size) - np.maximum(start, 0)
        divisor = divisor[..., None] * (stop - start if count_include_pad else within)
    ones = (1,) * (x.ndim - axes)
    total = jax.lax.reduce_window(
        x, np.zeros((), x.dtype), jax.lax.add, ones + kernel, ones + stride, widths
    )
    total = total[(..., *(slice(0, count) for count in counts))]
    return (total / jnp.asarray(divisor_override or divisor, x.dtype)).astype(x.dtype)


def _edges(size: int, count: int) -> list[tuple[int, int]]:
    """Return where each adaptive window starts and ends."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


@operator("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default",
          "adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default")  # fmt: skip
def _adaptive_avg_pool(x: jax.Array, output_size: Any) -> jax.Array:
    axes = len(output_size)
    for axis, count in enumerate(output_size, start=x.ndim - axes):
        size = x.shape[axis]
        count = size if count is None else int(count)
        weights = np.zeros((size, count))
        for number, (start, stop) in enumerate(_edges(size, count)):
            weights[start:stop, number] = 1 / (stop - start)
        x = jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ jnp.asarray(weights, x.dtype), -1, axis)
    return x


@operator("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def _adaptive_max_pool(x: jax.Array, output_size: Any) -> tuple:
    axes = len(output_size)
    counts = [int(part) for part in output_size]
    sizes = x.shape[-axes:]
    reach = [
        max(stop - start for start, stop in _edges(size, count))
        for size, count in zip(sizes, counts, strict=True)
    ]
    flat, inside = np.zeros((), np.int64), np.ones((), bool)
    for axis, (size, count, window) in enumerate(zip(sizes, counts, reach, strict=True)):
        edges = np.asarray(_edges(size, count))
        place = edges[:, :1] + np.arange(window)
        shape = [1] * (2 * axes)
        shape[axis], shape[axes + axis] = place.shape
        inside = inside & (place < edges[:, 1:]).reshape(shape)
        flat = flat * size + place.reshape(shape)
    flat = np.where(inside, flat, 0).reshape(*counts, math.prod(reach))
    inside = np.broadcast_to(inside, (*counts, *reach)).reshape(*counts, math.prod(reach))
    rows = x.reshape(*x.shape[: x.ndim - axes], -1)
    windows = jnp.where(inside, rows[..., flat], -jnp.inf).astype(x.dtype)
    return _largest(windows, flat)
