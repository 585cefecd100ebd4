"""Operators that fold axes: sums, extremes, running sums, norms."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from bridges.torch.ops.operator import (
    absolute,
    array,
    axes_of,
    axis_of,
    cast,
    dtype_of,
    floating,
    is_float,
    operator,
)


def _summable(x: jax.Array, dtype: str | None) -> jax.Array:
    """Return x in the dtype that it is added up in."""
    if dtype is not None:
        return cast(x, dtype_of(dtype))
    small = x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.integer)
    return x.astype(dtype_of("int64")) if small else x


@operator("sum.dim_IntList", "sum.default")
def _sum(x: jax.Array, dim: Any = None, keepdim: bool = False, dtype: str | None = None):
    return jnp.sum(_summable(x, dtype), axis=axes_of(dim, x.ndim), keepdims=keepdim)


@operator("nansum.default")
def _nansum(x: jax.Array, dim: Any = None, keepdim: bool = False, dtype: str | None = None):
    return _sum(jnp.where(jnp.isnan(x), 0, x), dim, keepdim, dtype)


@operator("mean.dim", "mean.default")
def _mean(x: jax.Array, dim: Any = None, keepdim: bool = False, dtype: str | None = None):
    if isinstance(dim, str):
        dim, dtype = None, dim
    x = x if dtype is None else cast(x, dtype_of(dtype))
    return jnp.mean(x, axis=axes_of(dim, x.ndim), keepdims=keepdim)


@operator("prod.dim_int")
def _prod_dim(x: jax.Array, dim: int, keepdim: bool = False, dtype: str | None = None):
    return jnp.prod(_summable(x, dtype), axis=axes_of(dim, x.ndim), keepdims=keepdim)


@operator("prod.default")
def _prod(x: jax.Array, dtype: str | None = None) -> jax.Array:
    return jnp.prod(_summable(x, dtype))


@operator("amax.default")
def _amax(x: jax.Array, dim: Any = (), keepdim: bool = False) -> jax.Array:
    return jnp.max(x, axis=axes_of(dim, x.ndim), keepdims=keepdim)


@operator("amin.default")
def _amin(x: jax.Array, dim: Any = (), keepdim: bool = False) -> jax.Array:
    return jnp.min(x, axis=axes_of(dim, x.ndim), keepdims=keepdim)


operator("max.default")(jnp.max)
operator("min.default")(jnp.min)


def _chosen(x: jax.Array, places: jax.Array, axis: int, keepdim: bool) -> tuple:
    """Return the values at `places`, which have the reduced axis at length 1, and the places."""
    values = jnp.take_along_axis(x, places, axis=axis)
    places = places.astype(dtype_of("int64"))
    return (values, places) if keepdim else (values.squeeze(axis), places.squeeze(axis))


@operator("max.dim")
def _max_dim(x: jax.Array, dim: int, keepdim: bool = False) -> tuple:
    if x.ndim == 0:
        return x, jnp.zeros((), dtype_of("int64"))
    axis = axis_of(dim, x.ndim)
    return _chosen(x, jnp.argmax(x, axis=axis, keepdims=True), axis, keepdim)


@operator("min.dim")
def _min_dim(x: jax.Array, dim: int, keepdim: bool = False) -> tuple:
    if x.ndim == 0:
        return x, jnp.zeros((), dtype_of("int64"))
    axis = axis_of(dim, x.ndim)
    return _chosen(x, jnp.argmin(x, axis=axis, keepdims=True), axis, keepdim)


def _arg(function: Any, x: jax.Array, dim: int | None, keepdim: bool) -> jax.Array:
    if x.ndim == 0:
        return jnp.zeros((), dtype_of("int64"))
    if dim is None:
        found = function(x.reshape(-1))
        return (found.reshape((1,) * x.ndim) if keepdim else found).astype(dtype_of("int64"))
    return function(x, axis=dim, keepdims=keepdim).astype(dtype_of("int64"))


@operator("argmax.default")
def _argmax(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
    return _arg(jnp.argmax, x, dim, keepdim)


@operator("argmin.default")
def _argmin(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
    return _arg(jnp.argmin, x, dim, keepdim)


def _truth(x: jax.Array, result: jax.Array) -> jax.Array:
    # torch keeps uint8, its old boolean.
    return result.astype(jnp.uint8) if x.dtype == jnp.uint8 else result


@operator("any.default", "any.dim", "any.dims")
def _any(x: jax.Array, dim: Any = None, keepdim: bool = False) -> jax.Array:
    return _truth(x, jnp.any(x, axis=axes_of(dim, x.ndim), keepdims=keepdim))


@operator("all.default", "all.dim", "all.dims")
def _all(x: jax.Array, dim: Any = None, keepdim: bool = False) -> jax.Array:
    return _truth(x, jnp.all(x, axis=axes_of(dim, x.ndim), keepdims=keepdim))


@operator("_is_all_true.default")
def _is_all_true(x: jax.Array) -> jax.Array:
    return jnp.all(x)


@operator("_is_any_true.default")
def _is_any_true(x: jax.Array) -> jax.Array:
    return jnp.any(x)


@operator("count_nonzero.default", "count_nonzero.dim_IntList")
def _count_nonzero(x: jax.Array, dim: Any = None) -> jax.Array:
    return jnp.sum(x != 0, axis=axes_of(dim, x.ndim), dtype=dtype_of("int64"))


@operator("var.correction")
def _var(x: jax.Array, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> jax.Array:
    axes = axes_of(dim, x.ndim)
    count = math.prod(x.shape[axis] for axis in axes)
    correction = 1 if correction is None else correction
    offset = x - jnp.mean(x, axis=axes, keepdims=True)
    # The mean is rounded: without what it missed the variance of equal numbers would not be 0.
    missed = jax.lax.stop_gradient(jnp.mean(offset, axis=axes, keepdims=True))
    power = jnp.abs(offset - missed) ** 2
    total = jnp.sum(power, axis=axes, keepdims=keepdim)
    # torch divides by max(0, N - correction): infinite or NaN where nothing is left.
    return total / jnp.asarray(max(0.0, count - correction), total.dtype)


@operator("var.dim")
def _var_dim(x: jax.Array, dim: Any, unbiased: bool = True, keepdim: bool = False) -> jax.Array:
    return _var(x, dim, int(unbiased), keepdim)


@operator("std.correction")
def _std(x: jax.Array, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> jax.Array:
    return _smooth_at_zero(_var(x, dim, correction, keepdim), 0.5)


@operator("var_mean.correction")
def _var_mean(x: jax.Array, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> tuple:
    mean = jnp.mean(x, axis=axes_of(dim, x.ndim), keepdims=keepdim)
    return _var(x, dim, correction, keepdim), mean


@operator("cumsum.default")
def _cumsum(x: jax.Array, dim: int, dtype: str | None = None) -> jax.Array:
    x = _summable(x, dtype)
    return x if x.ndim == 0 else jnp.cumsum(x, axis=dim)


@operator("cumprod.default")
def _cumprod(x: jax.Array, dim: int, dtype: str | None = None) -> jax.Array:
    x = _summable(x, dtype)
    return x if x.ndim == 0 else jnp.cumprod(x, axis=dim)


def _running(x: jax.Array, dim: int, better: Any) -> tuple:
    """Return running extremes and where each stands: the last of equals, and NaN once met."""
    if x.ndim == 0:
        return x, jnp.zeros((), dtype_of("int64"))
    axis = axis_of(dim, x.ndim)
    places = jax.lax.broadcasted_iota(dtype_of("int64"), x.shape, axis)

    def later(a: tuple, b: tuple) -> tuple:
        take = better(b[0], a[0])
        if is_float(x):
            take = (take & ~jnp.isnan(a[0])) | jnp.isnan(b[0])
        return jnp.where(take, b[0], a[0]), jnp.where(take, b[1], a[1])

    _, found = jax.lax.associative_scan(later, (jax.lax.stop_gradient(x), places), axis=axis)
    return jnp.take_along_axis(x, found, axis=axis), found


@operator("cummax.default")
def _cummax(x: jax.Array, dim: int) -> tuple:
    return _running(x, dim, jnp.greater_equal)


@operator("cummin.default")
def _cummin(x: jax.Array, dim: int) -> tuple:
    return _running(x, dim, jnp.less_equal)


@operator("logcumsumexp.default")
def _logcumsumexp(x: jax.Array, dim: int) -> jax.Array:
    return x if x.ndim == 0 else jax.lax.cumlogsumexp(x, axis=axis_of(dim, x.ndim))


@operator("logsumexp.default")
def _logsumexp(x: jax.Array, dim: Any, keepdim: bool = False) -> jax.Array:
    return jax.nn.logsumexp(floating(x), axis=axes_of(dim, x.ndim), keepdims=keepdim)


@operator("linalg_vector_norm.default")
def _vector_norm(
    x: jax.Array, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: str | None = None
) -> jax.Array:
    x = x if dtype is None else x.astype(dtype_of(dtype))
    axes = axes_of(dim, x.ndim)
    size = absolute(x)
    if ord == 0:
        return jnp.sum((x != 0).astype(size.dtype), axis=axes, keepdims=keepdim)
    if ord == math.inf:
        return jnp.max(size, axis=axes, keepdims=keepdim)
    if ord == -math.inf:
        return jnp.min(size, axis=axes, keepdims=keepdim)
    if ord == 1:
        return jnp.sum(size, axis=axes, keepdims=keepdim)
    powers = size * size if ord == 2 else _smooth_at_zero(size, ord)
    total = jnp.sum(powers, axis=axes, keepdims=keepdim)
    return _smooth_at_zero(total, 1 / ord).astype(total.dtype)


def _smooth_at_zero(x: jax.Array, power: float) -> jax.Array:
    """Return a power of x >= 0; at 0 its derivative is torch's 0 and not infinite or NaN."""
    zero = x == 0
    safe = jnp.where(zero, 1, x)
    raised = jnp.sqrt(safe) if power == 0.5 else safe**power
    return jnp.where(zero, 0 if power > 0 else jnp.inf, raised).astype(x.dtype)


@operator("histc.default")
def _histc(x: jax.Array, bins: int = 100, min: Any = 0, max: Any = 0) -> jax.Array:
    if not x.size:
        return jnp.zeros(bins, x.dtype)
    flat = x.reshape(-1)
    low, high = array(min, x.dtype), array(max, x.dtype)
    if min == max:
        low, high = jnp.min(flat), jnp.max(flat)
        same = low == high
        low, high = jnp.where(same, low - 1, low), jnp.where(same, high + 1, high)
    scaled = floating(flat - low) * bins / floating(high - low)
    place = jnp.clip(jnp.floor(scaled).astype(jnp.int32), 0, bins - 1)
    inside = (flat >= low) & (flat <= high)
    return jnp.zeros(bins, x.dtype).at[place].add(inside.astype(x.dtype))


@operator("bincount.default", concrete=True)
def _bincount(x: jax.Array, weights: jax.Array | None = None, minlength: int = 0) -> jax.Array:
    if not x.size:
        # Of nothing torch counts in integers, whatever the weights are.
        return jnp.zeros(minlength, dtype_of("int64"))
    length = max(int(x.max()) + 1, minlength)
    if weights is not None and weights.dtype != jnp.float32:
        # torch adds up float32 as such and all else in float64.
        weights = weights.astype(dtype_of("float64"))
    return jnp.bincount(x, weights, length=length)
