"""Softmax and attention."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from bridges.torch.ops.operator import dtype_of, operator
from dew.errors import InputRefused


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


def _along(function: Any, x: jax.Array, dim: int) -> jax.Array:
    """Apply a softmax; an array without axes is a row of one, and NaN where that is not finite."""
    if x.ndim == 0:
        return function(_wide(x).reshape(1), axis=0).reshape(())
    return function(_wide(x), axis=dim)


@operator("_softmax.default")
def _softmax(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    y = _along(jax.nn.softmax, x, dim)
    return y if half_to_float else y.astype(x.dtype)


@operator("softmax.int")
def _softmax_int(x: jax.Array, dim: int, dtype: str | None = None) -> jax.Array:
    return _softmax(x if dtype is None else x.astype(dtype_of(dtype)), dim)


@operator("_safe_softmax.default")
def _safe_softmax(x: jax.Array, dim: int, dtype: str | None = None) -> jax.Array:
    """A softmax that is 0 on rows where everything is -inf, where torch's plain one is NaN."""
    x = x if dtype is None else x.astype(dtype_of(dtype))
    shut = x == -jnp.inf
    shut = jnp.all(shut, axis=dim, keepdims=True) if x.ndim else shut
    return jnp.where(shut, 0, _softmax(jnp.where(shut, 0, x), dim))


@operator("_log_softmax.default")
def _log_softmax(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    y = _along(jax.nn.log_softmax, x, dim)
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
        raise InputRefused(
            "dropout inside scaled_dot_product_attention: load the model with "
            'attn_implementation="eager", whose dropout is an operator of its own'
        )
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key, value = (
            jnp.repeat(part, query.shape[-3] // part.shape[-3], axis=-3) for part in (key, value)
        )
    scores = _scores(query, key, attn_mask, is_causal, scale)
    return _safe_softmax(scores, -1).astype(value.dtype) @ value


def _scores(
    query: jax.Array, key: jax.Array, attn_mask: Any, is_causal: bool, scale: float | None
) -> jax.Array:
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = _wide(query @ jnp.swapaxes(key, -1, -2)) * scale
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], jnp.bool_)), scores, -jnp.inf)
    if attn_mask is None:
        return scores
    masked = attn_mask.dtype == jnp.bool_
    return jnp.where(attn_mask, scores, -jnp.inf) if masked else scores + attn_mask


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
    scores = jax.lax.stop_gradient(_scores(query, key, attn_mask, is_causal, scale))
    return out, jax.nn.logsumexp(scores, axis=-1)


operator("_scaled_dot_product_flash_attention_for_cpu.default")(_flash)
