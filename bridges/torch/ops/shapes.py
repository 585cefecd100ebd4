"""Operators that move elements about and compute nothing."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.torch.ops.operator import array, axes_of, axis_of, dtype_of, operator, promoted


@operator("view.default", "reshape.default", "_unsafe_view.default", "view_copy.default",
          "_reshape_copy.default", "_reshape_alias.default")  # fmt: skip
def _view(x: jax.Array, size: Any, stride: Any = None) -> jax.Array:
    return x.reshape(tuple(int(part) for part in size))


@operator("view_as.default")
def _view_as(x: jax.Array, other: jax.Array) -> jax.Array:
    return x.reshape(other.shape)


@operator("view.dtype")
def _view_dtype(x: jax.Array, dtype: str) -> jax.Array:
    wanted = jnp.dtype(dtype_of(dtype))
    if wanted.itemsize == x.dtype.itemsize:
        return jax.lax.bitcast_convert_type(x, wanted)
    if wanted.itemsize < x.dtype.itemsize:
        parts = jax.lax.bitcast_convert_type(x, wanted)
        return parts.reshape(*x.shape[:-1], -1)
    share = wanted.itemsize // x.dtype.itemsize
    return jax.lax.bitcast_convert_type(x.reshape(*x.shape[:-1], -1, share), wanted)


@operator("permute.default", "permute_copy.default")
def _permute(x: jax.Array, dims: Any) -> jax.Array:
    return jnp.transpose(x, [axis_of(dim, x.ndim) for dim in dims])


@operator("transpose.int", "transpose_copy.int")
def _transpose(x: jax.Array, dim0: int, dim1: int) -> jax.Array:
    return x if x.ndim == 0 else jnp.swapaxes(x, dim0, dim1)


@operator("t.default", "t_copy.default", "numpy_T.default")
def _t(x: jax.Array) -> jax.Array:
    return x.T


@operator("movedim.intlist")
def _movedim(x: jax.Array, source: Any, destination: Any) -> jax.Array:
    return jnp.moveaxis(x, source, destination)


@operator("expand.default", "expand_copy.default")
def _expand(x: jax.Array, size: Any, implicit: bool = False) -> jax.Array:
    added = len(size) - x.ndim
    shape = [
        x.shape[axis - added] if axis >= added and int(part) == -1 else int(part)
        for axis, part in enumerate(size)
    ]
    return jnp.broadcast_to(x, shape)


@operator("broadcast_to.default")
def _broadcast_to(x: jax.Array, size: Any) -> jax.Array:
    return _expand(x, size)


@operator("unsqueeze.default", "unsqueeze_copy.default")
def _unsqueeze(x: jax.Array, dim: int) -> jax.Array:
    return jnp.expand_dims(x, dim)


@operator("squeeze.default", "squeeze.dim", "squeeze.dims", "squeeze_copy.dims")
def _squeeze(x: jax.Array, dim: Any = None) -> jax.Array:
    dims = [dim] if isinstance(dim, int) else dim
    axes = range(x.ndim) if dims is None else [axis_of(axis, x.ndim) for axis in dims if x.ndim]
    return jnp.squeeze(x, tuple({axis for axis in axes if x.shape[axis] == 1}))


@operator("flatten.using_ints")
def _flatten(x: jax.Array, start_dim: int = 0, end_dim: int = -1) -> jax.Array:
    if x.ndim == 0:
        return x.reshape(1)
    start, end = axis_of(start_dim, x.ndim), axis_of(end_dim, x.ndim)
    middle = math.prod(x.shape[start : end + 1])
    return x.reshape(*x.shape[:start], middle, *x.shape[end + 1 :])


@operator("cat.default")
def _cat(tensors: Any, dim: int = 0) -> jax.Array:
    dtype = promoted(*tensors)
    # torch lets an empty array of one axis stand among others of any shape.
    real = [part for part in tensors if part.ndim != 1 or part.shape[0]] or tensors[:1]
    return jnp.concatenate([part.astype(dtype) for part in real], axis=dim)


@operator("stack.default")
def _stack(tensors: Any, dim: int = 0) -> jax.Array:
    dtype = promoted(*tensors)
    return jnp.stack([part.astype(dtype) for part in tensors], axis=dim)


@operator("split_with_sizes.default", "split_with_sizes_copy.default")
def _split_with_sizes(x: jax.Array, split_sizes: Any, dim: int = 0) -> tuple:
    ends = np.cumsum([int(size) for size in split_sizes])
    return tuple(jnp.split(x, ends[:-1], axis=dim))


@operator("split.Tensor", "split_copy.Tensor")
def _split(x: jax.Array, split_size: int, dim: int = 0) -> tuple:
    length = x.shape[axis_of(dim, x.ndim)]
    if split_size == 0 or length == 0:
        return (x,)
    return tuple(jnp.split(x, list(range(split_size, length, split_size)), axis=dim))


@operator("chunk.default")
def _chunk(x: jax.Array, chunks: int, dim: int = 0) -> tuple:
    length = x.shape[axis_of(dim, x.ndim)]
    return _split(x, -(-length // chunks), dim) if length else (x,) * chunks


@operator("unbind.int", "unbind_copy.int")
def _unbind(x: jax.Array, dim: int = 0) -> tuple:
    axis = axis_of(dim, x.ndim)
    return tuple(jax.lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis]))


def bounds(length: int, start: Any, end: Any) -> tuple[int, int]:
    """Return a slice's start and end within [0, length], as torch reads them."""
    start, end = 0 if start is None else int(start), length if end is None else int(end)
    start = min(max(start + length if start < 0 else start, 0), length)
    end = min(max(end + length if end < 0 else end, start), length)
    return start, end


@operator("slice.Tensor", "slice_copy.Tensor")
def _slice(x: jax.Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1):
    axis = axis_of(dim, x.ndim)
    start, end = bounds(x.shape[axis], start, end)
    return jax.lax.slice_in_dim(x, start, end, int(step), axis)


@operator("narrow.default")
def _narrow(x: jax.Array, dim: int, start: int, length: int) -> jax.Array:
    axis = axis_of(dim, x.ndim)
    start = int(start) % x.shape[axis] if start < 0 else int(start)
    return jax.lax.slice_in_dim(x, start, start + length, axis=axis)


@operator("select.int", "select_copy.int")
def _select(x: jax.Array, dim: int, index: Any) -> jax.Array:
    axis = axis_of(dim, x.ndim)
    if isinstance(index, jax.Array):
        return jnp.take(x, index, axis=axis, mode="fill")
    if not -x.shape[axis] <= index < x.shape[axis]:
        raise IndexError(f"select: index {index} of an axis of length {x.shape[axis]}")
    return jax.lax.index_in_dim(x, int(index), axis, keepdims=False)


@operator("slice_scatter.default")
def _slice_scatter(
    x: jax.Array, src: jax.Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> jax.Array:
    axis = axis_of(dim, x.ndim)
    start, end = bounds(x.shape[axis], start, end)
    index = (slice(None),) * axis + (slice(start, end, int(step)),)
    return x.at[index].set(src.astype(x.dtype))


@operator("select_scatter.default")
def _select_scatter(x: jax.Array, src: jax.Array, dim: int, index: int) -> jax.Array:
    where = (slice(None),) * axis_of(dim, x.ndim) + (int(index),)
    return x.at[where].set(src.astype(x.dtype))


@operator("diagonal.default", "diagonal_copy.default")
def _diagonal(x: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    return jnp.diagonal(x, offset, dim1, dim2)


@operator("diagonal_scatter.default")
def _diagonal_scatter(
    x: jax.Array, src: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> jax.Array:
    moved = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    length = src.shape[-1]
    rows = jnp.arange(length) + max(-offset, 0)
    columns = jnp.arange(length) + max(offset, 0)
    moved = moved.at[..., rows, columns].set(src.astype(x.dtype))
    return jnp.moveaxis(moved, (-2, -1), (dim1, dim2))


@operator("diag_embed.default")
def _diag_embed(x: jax.Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> jax.Array:
    size = x.shape[-1] + abs(offset)
    rows = jnp.arange(x.shape[-1]) + max(-offset, 0)
    columns = jnp.arange(x.shape[-1]) + max(offset, 0)
    whole = jnp.zeros((*x.shape[:-1], size, size), x.dtype).at[..., rows, columns].set(x)
    return jnp.moveaxis(whole, (-2, -1), (dim1, dim2))


@operator("tril.default")
def _tril(x: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.tril(x, diagonal)


@operator("triu.default")
def _triu(x: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.triu(x, diagonal)


@operator("repeat.default")
def _repeat(x: jax.Array, repeats: Any) -> jax.Array:
    return jnp.tile(x, [int(part) for part in repeats])


@operator("repeat_interleave.self_int")
def _repeat_interleave(x: jax.Array, repeats: int, dim: int | None = None, output_size: Any = None):
    return jnp.repeat(x, int(repeats), axis=dim)


@operator("flip.default")
def _flip(x: jax.Array, dims: Any) -> jax.Array:
    return jnp.flip(x, [axis_of(dim, x.ndim) for dim in dims]) if x.ndim else x


@operator("roll.default")
def _roll(x: jax.Array, shifts: Any, dims: Any = ()) -> jax.Array:
    return jnp.roll(x, tuple(shifts), tuple(dims)) if dims else jnp.roll(x, shifts[0])


@operator("unfold.default", "unfold_copy.default")
def _unfold(x: jax.Array, dimension: int, size: int, step: int) -> jax.Array:
    axis = axis_of(dimension, x.ndim)
    if x.ndim == 0:
        return x.reshape(1)[:size]
    starts = jnp.arange(0, x.shape[axis] - size + 1, step)
    places = starts[:, None] + jnp.arange(size)
    taken = jnp.take(x, places.reshape(-1), axis=axis)
    shape = (*x.shape[:axis], len(starts), size, *x.shape[axis + 1 :])
    return jnp.moveaxis(taken.reshape(shape), axis + 1, -1)


@operator("as_strided.default", "as_strided_copy.default")
def _as_strided(x: jax.Array, size: Any, stride: Any, storage_offset: Any = 0) -> jax.Array:
    # Right for an array that torch holds row by row, which is what exported graphs hand on.
    places = np.asarray(int(storage_offset or 0))
    for length, jump in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(int(length)) * int(jump)
    return jnp.take(x.reshape(-1), places.reshape([int(part) for part in size]))


@operator("constant_pad_nd.default")
def _constant_pad(x: jax.Array, pad: Any, value: Any = 0) -> jax.Array:
    widths = [(0, 0, 0)] * x.ndim
    for number in range(len(pad) // 2):
        widths[-1 - number] = (int(pad[2 * number]), int(pad[2 * number + 1]), 0)
    return jax.lax.pad(x, array(value, x.dtype), widths)


def _padded(x: jax.Array, padding: Any, mode: str) -> jax.Array:
    widths, crops = [(0, 0)] * x.ndim, [slice(None)] * x.ndim
    for number in range(len(padding) // 2):
        low, high = int(padding[2 * number]), int(padding[2 * number + 1])
        axis = x.ndim - 1 - number
        widths[axis] = (max(low, 0), max(high, 0))
        # A negative width cuts, and does so after the other side was filled.
        crops[axis] = slice(max(-low, 0), x.shape[axis] + sum(widths[axis]) - max(-high, 0))
    return jnp.pad(x, widths, mode=mode)[tuple(crops)]


@operator("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
def _reflection_pad(x: jax.Array, padding: Any) -> jax.Array:
    return _padded(x, padding, "reflect")


@operator("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
def _replication_pad(x: jax.Array, padding: Any) -> jax.Array:
    return _padded(x, padding, "edge")


@operator("pixel_shuffle.default")
def _pixel_shuffle(x: jax.Array, upscale_factor: int) -> jax.Array:
    r, (*lead, channels, height, width) = upscale_factor, x.shape
    x = x.reshape(*lead, channels // r**2, r, r, height, width)
    x = jnp.moveaxis(x, (-4, -3), (-3, -1))
    return x.reshape(*lead, channels // r**2, height * r, width * r)


@operator("pixel_unshuffle.default")
def _pixel_unshuffle(x: jax.Array, downscale_factor: int) -> jax.Array:
    r, (*lead, channels, height, width) = downscale_factor, x.shape
    x = x.reshape(*lead, channels, height // r, r, width // r, r)
    x = jnp.moveaxis(x, (-3, -1), (-4, -3))
    return x.reshape(*lead, channels * r**2, height // r, width // r)


@operator("channel_shuffle.default")
def _channel_shuffle(x: jax.Array, groups: int) -> jax.Array:
    batch, channels, *space = x.shape
    return x.reshape(batch, groups, channels // groups, *space).swapaxes(1, 2).reshape(x.shape)


@operator("sym_size.int")
def _sym_size(x: jax.Array, dim: int) -> int:
    return x.shape[dim]


@operator("sym_numel.default")
def _sym_numel(x: jax.Array) -> int:
    return x.size


@operator("sym_stride.int")
def _sym_stride(x: jax.Array, dim: int) -> int:
    return math.prod(max(size, 1) for size in x.shape[axis_of(dim, x.ndim) + 1 :])


@operator("rot90.default")
def _rot90(x: jax.Array, k: int = 1, dims: Any = (0, 1)) -> jax.Array:
    first, second = axes_of(dims, x.ndim)
    return jnp.rot90(x, k, (first, second))
