"""Operators that draw: each takes a JAX key of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bridges.torch.ops.operator import dtype_of, operator


@operator("native_dropout.default", needs=("key",))
def _native_dropout(x: jax.Array, p: float, train: bool | None, *, key: Any) -> tuple:
    if train is False or p == 0:
        return x, jnp.ones(x.shape, jnp.bool_)
    if p == 1:
        return jnp.zeros_like(x), jnp.zeros(x.shape, jnp.bool_)
    kept = jax.random.bernoulli(key, 1 - p, x.shape)
    return jnp.where(kept, x / (1 - p), 0).astype(x.dtype), kept


@operator("dropout.default", needs=("key",))
def _dropout(x: jax.Array, p: float, train: bool, *, key: Any) -> jax.Array:
    return _native_dropout(x, p, train, key=key)[0]


@operator("bernoulli.default", needs=("key",))
def _bernoulli(x: jax.Array, *, key: Any) -> jax.Array:
    return jax.random.bernoulli(key, x).astype(x.dtype)


@operator("bernoulli.p", needs=("key",))
def _bernoulli_p(x: jax.Array, p: float = 0.5, *, key: Any) -> jax.Array:
    return jax.random.bernoulli(key, p, x.shape).astype(x.dtype)


def _shape(size: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in size)


@operator("rand.default", "rand.generator", needs=("key", "dtype"))
def _rand(size: Any, *, dtype: str, key: Any) -> jax.Array:
    return jax.random.uniform(key, _shape(size), dtype_of(dtype))


@operator("randn.default", "randn.generator", needs=("key", "dtype"))
def _randn(size: Any, *, dtype: str, key: Any) -> jax.Array:
    return jax.random.normal(key, _shape(size), dtype_of(dtype))


@operator("rand_like.default", needs=("key", "dtype"))
def _rand_like(x: jax.Array, *, dtype: str, key: Any) -> jax.Array:
    return jax.random.uniform(key, x.shape, dtype_of(dtype))


@operator("randn_like.default", needs=("key", "dtype"))
def _randn_like(x: jax.Array, *, dtype: str, key: Any) -> jax.Array:
    return jax.random.normal(key, x.shape, dtype_of(dtype))


@operator("randint.default", needs=("key", "dtype"))
def _randint(high: int, size: Any, *, dtype: str, key: Any) -> jax.Array:
    return _randint_low(0, high, size, dtype=dtype, key=key)


@operator("randint.low", needs=("key", "dtype"))
def _randint_low(low: int, high: int, size: Any, *, dtype: str, key: Any) -> jax.Array:
    drawn = jax.random.randint(key, _shape(size), low, high, dtype_of("int64"))
    return drawn.astype(dtype_of(dtype))


@operator("randperm.default", needs=("key", "dtype"))
def _randperm(n: int, *, dtype: str, key: Any) -> jax.Array:
    return jax.random.permutation(key, int(n)).astype(dtype_of(dtype))


@operator("normal_functional.default", needs=("key",))
def _normal(x: jax.Array, mean: float = 0.0, std: float = 1.0, *, key: Any) -> jax.Array:
    return mean + std * jax.random.normal(key, x.shape, x.dtype)


@operator("uniform.default", needs=("key",))
def _uniform(x: jax.Array, low: float = 0.0, high: float = 1.0, *, key: Any) -> jax.Array:
    return jax.random.uniform(key, x.shape, x.dtype, low, high)


@operator("exponential.default", needs=("key",))
def _exponential(x: jax.Array, lambd: float = 1.0, *, key: Any) -> jax.Array:
    return jax.random.exponential(key, x.shape, x.dtype) / lambd


@operator("multinomial.default", needs=("key",))
def _multinomial(x: jax.Array, num_samples: int, replacement: bool = False, *, key: Any):
    shape = (*x.shape[:-1], num_samples)
    if replacement:
        drawn = jax.random.categorical(key, jnp.log(x)[..., None, :], axis=-1, shape=shape)
        return drawn.astype(dtype_of("int64"))
    # The largest of log p plus Gumbel noise are a draw without replacement.
    noisy = jnp.log(x) + jax.random.gumbel(key, x.shape, x.dtype)
    return jax.lax.top_k(noisy, num_samples)[1].astype(dtype_of("int64"))
