"""Softmax and attention."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from bridges.torch.ops.operator import dtype_of, operator


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


@operator("_softmax.default")
def _softmax(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    y = jax.nn.softmax(_wide(x), axis=dim) if x.ndim else jnp.ones_like(x)
    return y if half_to_float else y.astype(x.dtype)


@operator("softmax.int")
def _softmax_int(x: jax.Array, dim: int, dtype: str | None = None) -> jax.Array:
    return _softmax(x if dtype is None else x.astype(dtype_of(dtype)), dim)


@operator("_safe_softmax.default")
def _safe_softmax(x: jax.Array, dim: int, dtype: str | None = None) -> jax.Array:
    """A softmax that is 0 on rows where everything is -inf, where torch's plain one is NaN."""
    x = x if dtype is None else x.astype(dtype_of(dtype))
    shut = jnp.all(x == -jnp.inf, axis=dim, keepdims=True)
    return jnp.where(shut, 0, _softmax(jnp.where(shut, 0, x), dim))


@operator("_log_softmax.default")
def _log_softmax(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    y = jax.nn.log_softmax(_wide(x), axis=dim) if x.ndim else jnp.zeros_like(x)
    return y if half_to_float else y.astype(x.dtype)


@operator("log_softmax.int")
def _log_softmax_int(x: jax.Array, dim: int, dtype: str | None = None) -> jax.Array:
    return _log_softmax(x if dtype is None else x.astype(dtype_of(dtype)), dim)


@operator("scaled_dot_product_attention.default")
def _attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_mask: jax.Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> jax.Array:
    """Attention over [..., heads, length, features]; dropout is traced apart from it."""
    if dropout_p:
        raise NotImplementedError(
            "dropout inside scaled_dot_product_attention: load the model with "
            'attn_implementation="eager", whose dropout is an operator of its own'
        )
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key, value = (
            jnp.repeat(part, query.shape[-3] // part.shape[-3], axis=-3) for part in (key, value)
        )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = _wide(query @ jnp.swapaxes(key, -1, -2)) * scale
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], jnp.bool_)), scores, -jnp.inf)
    if attn_mask is not None:
        masked = attn_mask.dtype == jnp.bool_
        scores = jnp.where(attn_mask, scores, -jnp.inf) if masked else scores + attn_mask
    return _safe_softmax(scores, -1).astype(value.dtype) @ value


def _flash(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Any = None,
    scale: float | None = None,
) -> tuple:
    out = _attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return out, jnp.zeros(query.shape[:-1], jnp.float32)


operator("_scaled_dot_product_flash_attention_for_cpu.default")(_flash)
