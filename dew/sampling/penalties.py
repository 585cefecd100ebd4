"""The rules that read what a row holds so far and change the next token's logits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dew.sampling.text import REMOVED

ANY = -2
"""In a table of sequences: whatever stands there."""
NOTHING = -1
"""In a row's ids: no token."""


class Sequences(NamedTuple):
    """Q sequences of ids and what is added to the logit of the id that would complete one.

    `before` int32 [Q, W] is what stands before the last id, at the right end of `ANY`; `last`
    int32 [Q]; `bias` float32 [Q].
    """

    before: jax.Array
    last: jax.Array
    bias: jax.Array


def bias_sequences(
    logits: jax.Array, past: jax.Array, length: jax.Array, sequences: Sequences
) -> jax.Array:
    """Return logits with the bias added where a row's newest ids are a sequence but for its last.

    Args:
        logits: [N, V].
        past: int32 [N, R], a row's ids so far in its first `length` columns, `NOTHING` elsewhere.
        length: of `past`.
        sequences: see `Sequences`.
    """
    width = sequences.before.shape[1]
    newest = _newest(past, length, width)[:, None]
    met = jnp.all((sequences.before == ANY) | (sequences.before == newest), axis=-1)
    bias = jnp.where(met, sequences.bias, 0.0)
    return logits + jnp.zeros_like(logits).at[:, sequences.last].add(bias)


def forbid_repeated_ngrams(
    logits: jax.Array, past: jax.Array, length: jax.Array, source: jax.Array, size: int
) -> jax.Array:
    """Return logits without the ids that would complete a run of `size` ids that `source` has.

    Args:
        logits: [N, V].
        past: as for `bias_sequences`.
        length: of `past`.
        source: int32 [N, M], where runs are looked for; `NOTHING` where there is no id.
        size: at least 1.
    """
    rows, width = source.shape
    if width < size:
        return logits
    newest = _newest(past, length, size - 1)
    ends = width - size + 1
    met = jnp.all(newest >= 0, axis=1, keepdims=True)
    for at in range(size - 1):
        met = met & (source[:, at : at + ends] == newest[:, at : at + 1])
    following = source[:, size - 1 :]
    met = met & (following >= 0)
    banned = jnp.zeros(logits.shape, bool)
    banned = banned.at[jnp.arange(rows)[:, None], jnp.maximum(following, 0)].max(met)
    return jnp.where(banned, REMOVED, logits)


def favour_ends(
    logits: jax.Array, ends: jax.Array, count: jax.Array, start: jax.Array, factor: jax.Array
) -> jax.Array:
    """Return logits with those of the `ends` raised the more, the longer a row is.

    Args:
        logits: [N, V].
        ends: int32 [E]; ids beyond the vocabulary are not read.
        count: new ids so far.
        start: new ids after which it begins.
        factor: to the power of the ids since, less one, times the logit's size, is what is added.
    """
    growth = factor ** jnp.maximum(count - start, 0).astype(jnp.float32) - 1.0
    raised = jnp.where(jnp.isfinite(logits), logits + jnp.abs(logits) * growth, logits)
    among = jnp.zeros(logits.shape[-1], bool).at[ends].set(True, mode="drop")
    return jnp.where(among & (count > start), raised, logits)


def finite(logits: jax.Array) -> jax.Array:
    """Return logits with NaN as 0, and infinities as the dtype's largest and smallest numbers."""
    limits = jnp.finfo(logits.dtype)
    return jnp.nan_to_num(logits, nan=0.0, posinf=limits.max, neginf=limits.min)


def allow(logits: jax.Array, packed: jax.Array) -> jax.Array:
    """Return logits [N, V] with the ids at minus infinity whose bit of int32 [N, V / 32] is 0."""
    index = jnp.arange(logits.shape[-1])
    bits = (packed[:, index // 32] >> (index % 32)) & 1
    return jnp.where(bits == 1, logits, REMOVED)


def _newest(past: jax.Array, length: jax.Array, width: int) -> jax.Array:
    """Return a row's newest ids int32 [N, width], `NOTHING` before its first."""
    padded = jnp.pad(past, ((0, 0), (width, 0)), constant_values=NOTHING)
    return jax.lax.dynamic_slice_in_dim(padded, length, width, axis=1)
