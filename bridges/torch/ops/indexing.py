"""Operators that read or write at given places.

torch refuses a place outside an array. Compiled code cannot: a read gives NaN there, or the
smallest integer, and a write is left out, so that nothing of another place comes in unseen.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.torch.ops.operator import absolute, array, axis_of, dtype_of, floating, operator

FILL: Any = "fill"


def places(indices: Any, shape: tuple[int, ...]) -> tuple:
    """Return NumPy's index for torch's list of arrays and None: boolean masks become places."""
    found: list[Any] = []
    axis = 0
    for index in indices:
        if index is None:
            found.append(slice(None))
            axis += 1
        elif index.dtype in (jnp.bool_, jnp.uint8):
            # Its places must be known when the graph is traced.
            found.extend(jnp.asarray(place) for place in np.nonzero(np.asarray(index)))
            axis += index.ndim
        else:
            found.append(index)
            axis += 1
    return (*found, *([slice(None)] * (len(shape) - axis)))


@operator("index.Tensor", "_unsafe_index.Tensor")
def _index(x: jax.Array, indices: Any) -> jax.Array:
    return x.at[places(indices, x.shape)].get(mode=FILL)


@operator("index_put.default", "_unsafe_index_put.default")
def _index_put(x: jax.Array, indices: Any, values: jax.Array, accumulate: bool = False):
    mask = indices[0]
    if len(indices) == 1 and mask is not None and mask.dtype == jnp.bool_ and values.size == 1:
        spread = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
        value = values.reshape(()).astype(x.dtype)
        return jnp.where(spread, x + value if accumulate else value, x)
    at = x.at[places(indices, x.shape)]
    values = values.astype(x.dtype)
    return at.add(values, mode="drop") if accumulate else at.set(values, mode="drop")


def _along(x: jax.Array, dim: int, index: jax.Array) -> tuple:
    """Return the index that reads or writes `index` along one axis, the others in step."""
    axis = axis_of(dim, x.ndim)
    grid = list(jnp.indices(index.shape, sparse=True))
    grid[axis] = index
    return tuple(grid)


@operator("gather.default")
def _gather(x: jax.Array, dim: int, index: jax.Array, sparse_grad: bool = False) -> jax.Array:
    if x.ndim == 0:
        return jnp.broadcast_to(x, index.shape)
    if index.ndim == 0:
        return x[index]
    return x.at[_along(x, dim, index)].get(mode=FILL)


@operator("take_along_dim.default")
def _take_along_dim(x: jax.Array, indices: jax.Array, dim: int | None = None) -> jax.Array:
    return jnp.take_along_axis(x, indices, axis=dim)


@operator("index_select.default")
def _index_select(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    if x.ndim == 0:
        return x
    return jnp.take(x, index.reshape(-1), axis=axis_of(dim, x.ndim), mode=FILL)


@operator("take.default")
def _take(x: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take(x.reshape(-1), index, mode=FILL)


def _scattered(x: jax.Array, dim: int, index: jax.Array, values: Any) -> tuple:
    """Return the place to write and its values: torch uses the index's own corner of both."""
    if x.ndim == 0 or index.ndim == 0:
        x, index = x.reshape(-1), index.reshape(-1)
    if isinstance(values, jax.Array):
        values = values.reshape(-1) if values.ndim < index.ndim else values
        values = values[tuple(slice(0, size) for size in index.shape)].astype(x.dtype)
    else:
        values = array(values, x.dtype)
    return x.at[_along(x, dim, index)], values


@operator("scatter.src", "scatter.value")
def _scatter(x: jax.Array, dim: int, index: jax.Array, value: Any) -> jax.Array:
    at, values = _scattered(x, dim, index, value)
    return at.set(values, mode="drop").reshape(x.shape)


@operator("scatter_add.default")
def _scatter_add(x: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    at, values = _scattered(x, dim, index, src)
    return at.add(values, mode="drop").reshape(x.shape)


def _multiplied(at: Any, values: jax.Array) -> jax.Array:
    return _product_at(at.array, jnp.broadcast_to(values, at.get().shape), at.index)


@jax.custom_jvp
def _product_at(x: jax.Array, values: jax.Array, index: tuple) -> jax.Array:
    """Multiply x by values at places that may be equal, of which JAX has no derivative."""
    return x.at[index].multiply(values, mode="drop")


@_product_at.defjvp
def _product_at_jvp(primals: tuple, tangents: tuple) -> tuple:
    x, values, index = primals
    by_x = jnp.ones_like(x).at[index].multiply(values, mode="drop")
    # By one value: the product of the others, 0 where another of the same place is 0.
    zero = values == 0
    safe = jnp.where(zero, 1, values)
    zeros = jnp.zeros(x.shape, jnp.int32).at[index].add(zero.astype(jnp.int32), mode="drop")
    alone = zeros.at[index].get(mode=FILL) == zero
    product = x.at[index].multiply(safe, mode="drop")
    others = product.at[index].get(mode=FILL, fill_value=0) / safe
    by_value = jnp.where(alone, others, 0)
    moved = jnp.zeros_like(x).at[index].add(tangents[1] * by_value, mode="drop")
    return _product_at(x, values, index), tangents[0] * by_x + moved


@operator("scatter.reduce", "scatter.value_reduce")
def _scatter_with(x: jax.Array, dim: int, index: jax.Array, value: Any, reduce: str) -> jax.Array:
    at, values = _scattered(x, dim, index, value)
    done = at.add(values, mode="drop") if reduce == "add" else _multiplied(at, values)
    return done.reshape(x.shape)


@operator("scatter_reduce.two")
def _scatter_reduce(
    x: jax.Array, dim: int, index: jax.Array, src: jax.Array, reduce: str, include_self: bool = True
) -> jax.Array:
    at, values = _scattered(x, dim, index, src)
    hit = jnp.zeros_like(at.array, jnp.int32).at[at.index].add(1, mode="drop")
    if not include_self:
        start = _neutral(reduce, x.dtype)
        at = jnp.where(hit > 0, start, at.array).at[at.index]
    if reduce == "prod":
        return _multiplied(at, values).reshape(x.shape)
    methods = {"sum": "add", "mean": "add", "amax": "max", "amin": "min"}
    done = getattr(at, methods[reduce])(values, mode="drop")
    if reduce == "mean":
        count = jnp.maximum(hit + int(include_self), 1)
        whole = jnp.issubdtype(x.dtype, jnp.integer)
        done = done // count if whole else done / count.astype(x.dtype)
    return done.reshape(x.shape).astype(x.dtype)


def _neutral(reduce: str, dtype: Any) -> jax.Array:
    if reduce in ("sum", "mean", "prod"):
        return jnp.asarray(1 if reduce == "prod" else 0, dtype)
    low, high = (
        (-jnp.inf, jnp.inf)
        if jnp.issubdtype(dtype, jnp.floating)
        else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    )
    return jnp.asarray(low if reduce == "amax" else high, dtype)


def _rows_at(x: jax.Array, dim: int, index: jax.Array) -> Any:
    """Return the places of whole slices; an array without axes has one of length 1."""
    x = x if x.ndim else x.reshape(1)
    return x.at[(slice(None),) * axis_of(dim, x.ndim) + (index,)]


@operator("index_add.default")
def _index_add(x: jax.Array, dim: int, index: jax.Array, source: jax.Array, alpha: Any = 1):
    added = source.astype(x.dtype) * array(alpha, x.dtype)
    return _rows_at(x, dim, index).add(added, mode="drop").reshape(x.shape)


@operator("index_copy.default")
def _index_copy(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    return _rows_at(x, dim, index).set(source.astype(x.dtype), mode="drop").reshape(x.shape)


@operator("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(x: jax.Array, dim: int, index: jax.Array, value: Any) -> jax.Array:
    return _rows_at(x, dim, index).set(array(value, x.dtype), mode="drop").reshape(x.shape)


@operator("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(x: jax.Array, mask: jax.Array, value: Any) -> jax.Array:
    return jnp.where(mask, array(value, x.dtype), x)


@operator("masked_scatter.default")
def _masked_scatter(x: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    mask = jnp.broadcast_to(mask, x.shape)
    if source.size == 0:
        return x
    order = jnp.cumsum(mask.reshape(-1).astype(jnp.int32)) - 1
    taken = source.reshape(-1).at[jnp.clip(order, 0, None)].get(mode=FILL).astype(x.dtype)
    return jnp.where(mask, taken.reshape(x.shape), x)


@operator("masked_select.default", concrete=True)
def _masked_select(x: jax.Array, mask: jax.Array) -> jax.Array:
    x, mask = jnp.broadcast_arrays(x, mask)
    return x.reshape(-1)[np.nonzero(np.asarray(mask).reshape(-1))]


@operator("nonzero.default", concrete=True)
def _nonzero(x: jax.Array) -> jax.Array:
    found = np.stack(np.nonzero(np.atleast_1d(np.asarray(x)) if x.ndim == 0 else np.asarray(x)))
    return jnp.asarray(found.T[:, : x.ndim], dtype_of("int64"))


@operator("repeat_interleave.Tensor", concrete=True)
def _repeat_interleave(repeats: jax.Array, output_size: Any = None) -> jax.Array:
    counts = np.asarray(repeats)
    return jnp.asarray(np.repeat(np.arange(len(counts)), counts), dtype_of("int64"))


@jax.custom_jvp
def _with_slope(x: jax.Array, slope: jax.Array) -> jax.Array:
    """Return x, and `slope` as its derivative."""
    return x


@_with_slope.defjvp
def _with_slope_jvp(primals: tuple, tangents: tuple) -> tuple:
    x, slope = primals
    return x, tangents[0] * slope


def _rows(weight: jax.Array, indices: jax.Array, by_frequency: bool) -> jax.Array:
    """Return a table's rows; by frequency, each gets the mean of its places' gradients."""
    rows = weight.at[indices].get(mode=FILL)
    if not by_frequency:
        return rows
    counts = jnp.zeros(weight.shape[0], weight.dtype).at[indices].add(1, mode="drop")
    return _with_slope(rows, 1 / counts.at[indices].get(mode=FILL)[..., None])


@operator("embedding.default")
def _embedding(
    weight: jax.Array,
    indices: jax.Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    rows = _rows(weight, indices, scale_grad_by_freq)
    if padding_idx >= 0:
        padding = (indices == padding_idx)[..., None]
        rows = jnp.where(padding, jax.lax.stop_gradient(rows), rows)
    return rows


@operator("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple:
    bags = offsets.shape[0] - int(include_last_offset)
    bag = jnp.searchsorted(offsets[:bags], jnp.arange(indices.shape[0]), side="right") - 1
    counted = indices != padding_idx if padding_idx >= 0 else jnp.ones(indices.shape, jnp.bool_)
    rows = _rows(weight, indices, scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    sizes = jnp.zeros(bags, jnp.int32).at[bag].add(counted.astype(jnp.int32))
    if mode == 2:
        low = jnp.where(counted[:, None], rows, -jnp.inf)
        out = jnp.full((bags, weight.shape[1]), -jnp.inf, weight.dtype).at[bag].max(low)
        out = jnp.where(sizes[:, None] > 0, out, 0)
    else:
        kept = jnp.where(counted[:, None], rows, 0)
        out = jnp.zeros((bags, weight.shape[1]), weight.dtype).at[bag].add(kept)
        out = out / jnp.maximum(sizes, 1)[:, None] if mode == 1 else out
    return out, bag, sizes, jnp.zeros(bags, jnp.int32)


@operator("one_hot.default", concrete=False)
def _one_hot(x: jax.Array, num_classes: int = -1) -> jax.Array:
    if num_classes < 0:
        num_classes = int(np.asarray(x).max()) + 1
    return jax.nn.one_hot(x, num_classes, dtype=dtype_of("int64"))


@operator("isin.Tensor_Tensor")
def _isin(x: jax.Array, test: jax.Array, assume_unique: bool = False, invert: bool = False):
    return jnp.isin(x, test, invert=invert)


@operator("cdist.default", "_cdist_forward.default")
def _cdist(x: jax.Array, y: jax.Array, p: float = 2.0, compute_mode: Any = None) -> jax.Array:
    gap = floating(x)[..., :, None, :] - floating(y)[..., None, :, :]
    if p == 2:
        total = jnp.sum(gap * gap, axis=-1)
        zero = total == 0
        return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, total)))
    if p == 0:
        return jnp.sum(gap != 0, axis=-1).astype(gap.dtype)
    if p == float("inf"):
        return jnp.max(absolute(gap), axis=-1)
    return jnp.sum(absolute(gap) ** p, axis=-1) ** (1 / p)
