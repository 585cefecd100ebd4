"""Operators that make arrays from numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.torch.ops.operator import array, dtype_of, operator


def _shape(size: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in size)


@operator("full.default", needs=("dtype",))
def _full(size: Any, fill_value: Any, dtype: str | None = None) -> jax.Array:
    return jnp.full(_shape(size), array(fill_value, dtype_of(dtype)))


@operator("full_like.default", needs=("dtype",))
def _full_like(x: jax.Array, fill_value: Any, dtype: str | None = None) -> jax.Array:
    return jnp.full(x.shape, array(fill_value, dtype_of(dtype)))


@operator("new_full.default", needs=("dtype",))
def _new_full(x: jax.Array, size: Any, fill_value: Any, dtype: str | None = None) -> jax.Array:
    return _full(size, fill_value, dtype)


@operator("zeros.default", "empty.memory_format", "empty_permuted.default", "empty_strided.default",
          needs=("dtype",))  # fmt: skip
def _zeros(size: Any, *_: Any, dtype: str | None = None) -> jax.Array:
    return jnp.zeros(_shape(size), dtype_of(dtype))


@operator("ones.default", needs=("dtype",))
def _ones(size: Any, dtype: str | None = None) -> jax.Array:
    return jnp.ones(_shape(size), dtype_of(dtype))


@operator("zeros_like.default", "empty_like.default", needs=("dtype",))
def _zeros_like(x: jax.Array, dtype: str | None = None) -> jax.Array:
    return jnp.zeros(x.shape, dtype_of(dtype))


@operator("ones_like.default", needs=("dtype",))
def _ones_like(x: jax.Array, dtype: str | None = None) -> jax.Array:
    return jnp.ones(x.shape, dtype_of(dtype))


@operator("new_zeros.default", "new_empty.default", "new_empty_strided.default", needs=("dtype",))
def _new_zeros(x: jax.Array, size: Any, *_: Any, dtype: str | None = None) -> jax.Array:
    return _zeros(size, dtype=dtype)


@operator("new_ones.default", needs=("dtype",))
def _new_ones(x: jax.Array, size: Any, dtype: str | None = None) -> jax.Array:
    return _ones(size, dtype=dtype)


@operator("fill.Scalar", "fill.Tensor")
def _fill(x: jax.Array, value: Any) -> jax.Array:
    return jnp.broadcast_to(array(value, x.dtype), x.shape)


@operator("copy.default")
def _copy(x: jax.Array, source: jax.Array, non_blocking: bool = False) -> jax.Array:
    return jnp.broadcast_to(source, x.shape).astype(x.dtype)


@operator("scalar_tensor.default", needs=("dtype",))
def _scalar_tensor(value: Any, dtype: str | None = None) -> jax.Array:
    return array(value, dtype_of(dtype))


@operator("arange.start_step", needs=("dtype",))
def _arange(start: Any, end: Any, step: Any = 1, dtype: str | None = None) -> jax.Array:
    wanted = dtype_of(dtype)
    count = int(np.ceil((end - start) / step))
    if jnp.issubdtype(wanted, jnp.integer):
        # torch counts by the numbers as they are given, and cuts start and step to whole ones.
        return jnp.asarray(int(start) + np.arange(count) * int(step)).astype(wanted)
    # torch multiplies in float64 and rounds once, so that no error adds up.
    return jnp.asarray(start + np.arange(count, dtype=np.float64) * step, wanted)


@operator("arange.start", needs=("dtype",))
def _arange_start(start: Any, end: Any, dtype: str | None = None) -> jax.Array:
    return _arange(start, end, 1, dtype)


@operator("arange.default", needs=("dtype",))
def _arange_end(end: Any, dtype: str | None = None) -> jax.Array:
    return _arange(0, end, 1, dtype)


@operator("linspace.default", needs=("dtype",))
def _linspace(start: Any, end: Any, steps: int, dtype: str | None = None) -> jax.Array:
    return jnp.asarray(np.linspace(float(start), float(end), int(steps)), dtype_of(dtype))


@operator("eye.default", needs=("dtype",))
def _eye(n: int, dtype: str | None = None) -> jax.Array:
    return jnp.eye(int(n), dtype=dtype_of(dtype))


@operator("eye.m", needs=("dtype",))
def _eye_m(n: int, m: int, dtype: str | None = None) -> jax.Array:
    return jnp.eye(int(n), int(m), dtype=dtype_of(dtype))


@operator("tril_indices.default", needs=("dtype",))
def _tril_indices(row: int, col: int, offset: int = 0, dtype: str | None = None) -> jax.Array:
    return jnp.asarray(np.stack(np.tril_indices(row, offset, col)), dtype_of(dtype))


@operator("triu_indices.default", needs=("dtype",))
def _triu_indices(row: int, col: int, offset: int = 0, dtype: str | None = None) -> jax.Array:
    return jnp.asarray(np.stack(np.triu_indices(row, offset, col)), dtype_of(dtype))
