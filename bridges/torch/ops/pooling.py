"""Pooling over windows, in torch's layout [N, C, ...] or [C, ...]."""

from __future__ import annotations

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


def _max_pool(
    x: jax.Array, axes: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[jax.Array, jax.Array]:
    """Return the largest of each window and its place in the flattened input."""
    kernel = spread(kernel, axes)
    stride = spread(stride, axes) if stride else kernel
    padding, dilation = spread(padding, axes), spread(dilation, axes)
    sizes = x.shape[-axes:]
    counts = [
        _outputs(*parts, ceil_mode)
        for parts in zip(sizes, kernel, stride, padding, dilation, strict=True)
    ]
    lead = x.shape[: x.ndim - axes]
    flat = jnp.zeros((), jnp.int32)
    inside = jnp.ones((), jnp.bool_)
    for axis, parts in enumerate(
        zip(sizes, kernel, stride, padding, dilation, counts, strict=True)
    ):
        place = _places(*parts)
        shape = [1] * (2 * axes)
        shape[axis], shape[axes + axis] = place.shape
        part = jnp.asarray(place, jnp.int32).reshape(shape)
        flat = flat * sizes[axis] + part
        inside = inside & (part >= 0) & (part < sizes[axis])
    flat = flat.reshape(*counts, -1)
    inside = inside.reshape(*counts, -1)
    low = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    rows = x.reshape(*lead, -1)
    windows = jnp.where(inside, rows[..., jnp.where(inside, flat, 0)], jnp.asarray(low, x.dtype))
    return _largest(windows, flat)


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


def _max_pool_values(
    x: jax.Array, axes: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> jax.Array:
    kernel = spread(kernel, axes)
    stride = spread(stride, axes) if stride else kernel
    padding, dilation = spread(padding, axes), spread(dilation, axes)
    if set(dilation) != {1}:
        # XLA has no derivative of a window with gaps.
        return _max_pool(x, axes, kernel, stride, padding, dilation, ceil_mode)[0]
    widths = [(0, 0)] * (x.ndim - axes)
    for parts in zip(x.shape[-axes:], kernel, stride, padding, dilation, strict=True):
        size, window, step, pad, gap = parts
        reach = (_outputs(*parts, ceil_mode) - 1) * step + gap * (window - 1) + 1
        widths.append((pad, max(reach - size - pad, 0)))
    ones = (1,) * (x.ndim - axes)
    low = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    pooled = jax.lax.reduce_window(
        x,
        np.asarray(low, x.dtype),
        jax.lax.max,
        ones + kernel,
        ones + stride,
        widths,
    )
    # Where the input ends before the padding does, a window too many would fit.
    counts = [
        _outputs(*parts, ceil_mode)
        for parts in zip(x.shape[-axes:], kernel, stride, padding, dilation, strict=True)
    ]
    return pooled[(..., *(slice(0, count) for count in counts))]


def _both(axes: int) -> Any:
    def pool(
        x: jax.Array,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        options = (axes, kernel_size, stride, padding, dilation, ceil_mode)
        return _MaxPool(x, options)

    return pool


class _MaxPool:
    """Values and places of a max pooling, each computed when it is asked for."""

    def __init__(self, x: jax.Array, options: tuple):
        self._x, self._options = x, options

    def __getitem__(self, number: int) -> jax.Array:
        if number:
            return _max_pool(self._x, *self._options)[1]
        return _max_pool_values(self._x, *self._options)

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
