"""Attention by softmax, whose backward pass computes the weights again from their sums."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from dew.nn.dropout import Kept

HIDDEN = -1e30
"""What stands in place of a score that a mask hides: finite, and its exponential is 0."""


def softmax_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    scale: float | None = None,
    kept: Kept | None = None,
) -> jax.Array:
    """Return softmax(scale q kᵀ + bias) v; query head i reads key head i // (H / G).

    Scores and their softmax are float32 at least. The backward pass keeps the arguments, the
    result and two numbers for each query, not the [L, S] weights.

    Args:
        query: [B, L, H, K].
        key, value: [B, S, G, K].
        mask: bool [B or 1, 1, L, S], True where a query may look; None lets all look everywhere.
            A row that sees nothing gives the mean of `value`.
        bias: [B or 1, H, L, S], added to the scores, or None.
        scale: None for 1 / √K.
        kept: which weights stay, bool [B, H, L, S], behind the softmax; None for all.

    Returns:
        [B, L, H, K].

    Source: the backward pass is that of Dao et al. 2022, arXiv:2205.14135, without its tiles.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    stays, factor = (None, 1.0) if kept is None else kept
    return _attention(query, key, value, mask, bias, stays, scale, factor)


@partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _attention(query, key, value, mask, bias, stays, scale, factor):
    return _forward(query, key, value, mask, bias, stays, scale, factor)[0]


def _forward(query, key, value, mask, bias, stays, scale, factor):
    groups = key.shape[2]
    scores = _scores(query, key, mask, bias, scale)
    peak = jnp.max(scores, axis=-1, keepdims=True)
    shares = jnp.exp(scores - peak)
    total = jnp.sum(shares, axis=-1, keepdims=True)
    weights = _stayed(shares / total, stays, factor)
    mixed = jnp.matmul(weights.astype(value.dtype), _by_head(value))
    out = _ungrouped(mixed, groups, query.shape)
    return out, (query, key, value, mask, bias, stays, out, peak, total)


def _backward(scale, factor, kept, gradient):
    query, key, value, mask, bias, stays, out, peak, total = kept
    groups = key.shape[2]
    shares = jnp.exp(_scores(query, key, mask, bias, scale) - peak) / total
    slope = _grouped(gradient, groups)
    weights = _stayed(shares, stays, factor).astype(value.dtype)
    to_value = jnp.matmul(weights.swapaxes(-1, -2), slope)
    wide = jnp.promote_types(query.dtype, jnp.float32)
    to_shares = jnp.matmul(slope, _by_head(value).swapaxes(-1, -2), preferred_element_type=wide)
    to_shares = _stayed(to_shares, stays, factor)
    pulled = jnp.sum(gradient.astype(wide) * out.astype(wide), axis=-1, keepdims=True)
    to_scores = shares * (to_shares - _grouped(pulled, groups))
    to_bias = None if bias is None else _to_bias(to_scores, bias, query.shape)
    narrow = (to_scores * scale).astype(query.dtype)
    to_query = jnp.matmul(narrow, _by_head(key))
    to_key = jnp.matmul(narrow.swapaxes(-1, -2), _grouped(query, groups))
    return (
        _ungrouped(to_query, groups, query.shape).astype(query.dtype),
        to_key.transpose(0, 2, 1, 3).astype(key.dtype),
        to_value.transpose(0, 2, 1, 3).astype(value.dtype),
        None,
        to_bias,
        None,
    )


_attention.defvjp(_forward, _backward)


def _scores(query, key, mask, bias, scale):
    """Return the scores, [B, G, R L, S]: R queries of L places for each key head."""
    batch, length, heads, _ = query.shape
    slots, groups = key.shape[1:3]
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.matmul(
        _grouped(query, groups), _by_head(key).swapaxes(-1, -2), preferred_element_type=wide
    )
    scores = scores.reshape(batch, groups, heads // groups, length, slots) * scale
    if bias is not None:
        scores = scores + bias.astype(wide).reshape(-1, *scores.shape[1:])
    if mask is not None:
        scores = jnp.where(mask[:, :, None], scores, HIDDEN)
    return scores.reshape(batch, groups, -1, slots)


def _stayed(weights, stays, factor):
    """Return weights [B, G, R L, S] with those zeroed that do not stay, [B, H, L, S]."""
    if stays is None:
        return weights
    return jnp.where(stays.reshape(weights.shape), weights * factor, 0)


def _by_head(x: jax.Array) -> jax.Array:
    """Return [B, S, G, K] as [B, G, S, K]."""
    return x.transpose(0, 2, 1, 3)


def _grouped(x: jax.Array, groups: int) -> jax.Array:
    """Return [B, L, H, K] as [B, G, R L, K]."""
    batch, length, heads, width = x.shape
    parts = x.reshape(batch, length, groups, heads // groups, width).transpose(0, 2, 3, 1, 4)
    return parts.reshape(batch, groups, -1, width)


def _ungrouped(x: jax.Array, groups: int, shape: tuple[int, ...]) -> jax.Array:
    """Return [B, G, R L, K] as [B, L, H, K]."""
    batch, length, heads, _ = shape
    parts = x.reshape(batch, groups, heads // groups, length, -1).transpose(0, 3, 1, 2, 4)
    return parts.reshape(batch, length, heads, -1)


def _to_bias(to_scores: jax.Array, bias: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the bias's gradient: that of the scores, summed where it was repeated."""
    batch, length, heads, _ = shape
    whole = to_scores.reshape(batch, heads, length, -1)
    repeated = tuple(axis for axis in range(4) if bias.shape[axis] == 1 and whole.shape[axis] != 1)
    return jnp.sum(whole, axis=repeated, keepdims=True).astype(bias.dtype)
