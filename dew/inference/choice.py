"""What bears on the choice of the next token, as arrays that a jitted chunk takes."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Choice(NamedTuple):
    """What a jitted chunk must know to choose a token; None leaves a rule out of the program."""

    ends: jax.Array
    pad: jax.Array
    minimum: jax.Array | None
    penalty: jax.Array | None
    temperature: jax.Array | None
    top_p: jax.Array | None
    min_p: jax.Array | None
    banned: jax.Array | None = None
    banned_first: tuple[jax.Array, jax.Array] | None = None
    first: jax.Array | None = None
    last: tuple[jax.Array, jax.Array] | None = None


def without_banned(logits: jax.Array, choice: Choice, count: jax.Array) -> jax.Array:
    """Return `logits` [..., V] without the ids that may not be chosen after `count` new ones."""
    if choice.banned is not None:
        logits = jnp.where(choice.banned, -jnp.inf, logits)
    if choice.banned_first is not None:
        banned, when = choice.banned_first
        logits = jnp.where(banned & (count == when), -jnp.inf, logits)
    return logits
