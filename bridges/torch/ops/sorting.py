"""Operators that order elements or look places up in an order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bridges.torch.ops.operator import axis_of, dtype_of, operator, promoted


def _by_order(x: jax.Array, order: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    return jnp.take_along_axis(x, order, axis=axis), order.astype(dtype_of("int64"))


def _order(x: jax.Array, axis: int, descending: bool) -> jax.Array:
    """Return the order of x along an axis, equals as they stood, NaN as the largest."""
    if not descending:
        return jnp.argsort(x, axis=axis, stable=True)
    reverse = jnp.argsort(jnp.flip(x, axis), axis=axis, stable=True)
    return x.shape[axis] - 1 - jnp.flip(reverse, axis)


@operator("sort.default")
def _sort(x: jax.Array, dim: int = -1, descending: bool = False) -> tuple:
    if x.ndim == 0:
        return x, jnp.zeros((), dtype_of("int64"))
    axis = axis_of(dim, x.ndim)
    return _by_order(x, _order(x, axis, descending), axis)


@operator("sort.stable")
def _sort_stable(x: jax.Array, stable: Any = None, dim: int = -1, descending: bool = False):
    return _sort(x, dim, descending)


@operator("argsort.default")
def _argsort(x: jax.Array, dim: int = -1, descending: bool = False) -> jax.Array:
    return _sort(x, dim, descending)[1]


@operator("argsort.stable")
def _argsort_stable(x: jax.Array, stable: bool, dim: int = -1, descending: bool = False):
    return _sort(x, dim, descending)[1]


@operator("topk.default")
def _topk(x: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple:
    if x.ndim == 0:
        return x, jnp.zeros((), dtype_of("int64"))
    axis = axis_of(dim, x.ndim)
    if largest and axis == x.ndim - 1:
        values, found = jax.lax.top_k(x, int(k))
        return values, found.astype(dtype_of("int64"))
    order = jax.lax.slice_in_dim(_order(x, axis, largest), 0, int(k), axis=axis)
    return _by_order(x, order, axis)


@operator("kthvalue.default")
def _kthvalue(x: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple:
    if x.ndim == 0:
        return x, jnp.zeros((), dtype_of("int64"))
    axis = axis_of(dim, x.ndim)
    place = jax.lax.slice_in_dim(_order(x, axis, False), k - 1, k, axis=axis)
    values, found = _by_order(x, place, axis)
    return (values, found) if keepdim else (values.squeeze(axis), found.squeeze(axis))


@operator("searchsorted.Tensor")
def _searchsorted(
    boundaries: jax.Array,
    x: jax.Array,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    side = side or ("right" if right else "left")
    if sorter is not None:
        boundaries = jnp.take_along_axis(boundaries, sorter, axis=-1)
    dtype = promoted(boundaries, x)
    boundaries, x = boundaries.astype(dtype), x.astype(dtype)
    if not boundaries.size or not x.size:
        found = jnp.zeros(x.shape, jnp.int32)
    elif boundaries.ndim == 1:
        found = jnp.searchsorted(boundaries, x, side=side)
    else:
        rows = boundaries.reshape(-1, boundaries.shape[-1])
        wanted = x.reshape(-1, x.shape[-1])
        found = jax.vmap(lambda row, part: jnp.searchsorted(row, part, side=side))(rows, wanted)
        found = found.reshape(x.shape)
    return found.astype(jnp.int32 if out_int32 else dtype_of("int64"))


@operator("bucketize.Tensor")
def _bucketize(
    x: jax.Array, boundaries: jax.Array, out_int32: bool = False, right: bool = False
) -> jax.Array:
    return _searchsorted(boundaries, x, out_int32, right)
