"""Ancestral sampling of masked diffusion: masks give way to tokens until none is left."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def unmasked(
    denoise: Callable[[jax.Array], jax.Array],
    tokens: jax.Array,
    *,
    mask_token: int,
    steps: int,
    key: jax.Array,
) -> jax.Array:
    """Return `tokens` with every mask replaced, over `steps` equal steps of time from 1 to 0.

    In the step from t to s each mask stays with probability s / t, and else becomes a token of
    the distribution that `denoise` gives at its place; what is no mask never changes.

    Args:
        denoise: maps int32 [B, L] to logits [B, L, V] of the real tokens.
        tokens: int32 [B, L], masks where something is to be written.
        mask_token: the id of a mask.
        steps: how many; more follow the model's joint distribution more closely.
        key: of all draws.

    Returns:
        int32 [B, L].

    Source: Sahoo et al. 2024, arXiv:2406.07524, equation 7, with alpha_t = 1 - t.
    """

    def step(tokens: jax.Array, index: jax.Array) -> tuple[jax.Array, None]:
        stay_key, token_key = jax.random.split(jax.random.fold_in(key, index))
        left = steps - index
        stays = jax.random.uniform(stay_key, tokens.shape) < (left - 1) / left
        drawn = jax.random.categorical(token_key, denoise(tokens).astype(jnp.float32))
        leaves = (tokens == mask_token) & ~stays
        return jnp.where(leaves, drawn.astype(tokens.dtype), tokens), None

    return jax.lax.scan(step, tokens, jnp.arange(steps))[0]
