"""Relative positions by their distance, in buckets that grow with it."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp


def distance_buckets(
    query: jax.Array, key: jax.Array, *, both: bool, buckets: int = 32, farthest: int = 128
) -> jax.Array:
    """Return the bucket of each key's distance from each query, int32 [L, S].

    Half of the buckets of a side are single distances; the others grow by a constant factor up to
    `farthest`, beyond which all distances share the last.

    Args:
        query: int [L], the places that look.
        key: int [S], the places looked at.
        both: whether keys behind a query have buckets of their own; else they count as distance 0.
        buckets: how many there are.
        farthest: in tokens.

    Source: Raffel et al. 2019, arXiv:1910.10683.
    """
    ahead = key[None, :] - query[:, None]
    side = buckets // 2 if both else buckets
    first = jnp.where(ahead > 0, side, 0) if both else 0
    distance = jnp.abs(ahead) if both else jnp.maximum(-ahead, 0)
    single = side // 2
    # float32 in this order, as in transformers: its rounding decides at the buckets' ends.
    share = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / single)
    grown = single + (share / math.log(farthest / single) * (side - single)).astype(jnp.int32)
    return first + jnp.where(distance < single, distance, jnp.minimum(grown, side - 1))
