"""The rows that are being continued, and the step that chooses each one's next token."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dew.inference.choice import Choice, Fixed, Past, ruled
from dew.sampling.text import draw

CHUNK = 64
"""As many ids a row are made at most before the host looks at them."""


class State(NamedTuple):
    """The rows in flight.

    `tokens` [N] is each row's newest id, not yet in the cache; `count` is how many ids were
    generated so far. `layers`, `visible` and `slot` are the cache's, see `Filled`.
    """

    layers: Any
    visible: Any
    slot: Any
    tokens: jax.Array
    positions: Any
    finished: jax.Array
    past: Past
    keys: jax.Array
    count: jax.Array


@jax.jit
def row_keys(seeds: np.ndarray, index: np.ndarray) -> jax.Array:
    """Return [N] keys of uint32 [N] seeds, each folded with its `index` int32 [N]."""
    return jax.vmap(lambda seed, at: jax.random.fold_in(jax.random.key(seed), at))(seeds, index)


@partial(jax.jit, static_argnums=0)
def first_token(fixed: Fixed, logits: jax.Array, state: State, choice: Choice) -> State:
    """Return `state`, which has no cache yet, with the token that the prompts' logits lead to."""
    return choose(fixed, logits, state, choice)


def choose(fixed: Fixed, logits: jax.Array, state: State, choice: Choice) -> State:
    """Choose each row's next token; a row that has ended gets padding.

    Args:
        fixed: what fixes the program.
        logits: [N, V].
        state: before the token.
        choice: what bears on it.
    """
    logits = ruled(logits, fixed, choice, state.past, state.count)
    if fixed.sample:
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.keys, state.count)
        tokens = draw(logits, keys, choice.rules._replace(top_k=fixed.top_k))
    else:
        tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if choice.first is not None:
        tokens = jnp.where(state.count == 0, choice.first, tokens)
    if choice.last is not None:
        tokens = jnp.where(state.count == choice.last[1], choice.last[0], tokens)
    tokens = jnp.where(state.finished, choice.pad, tokens)
    ended = jnp.any(tokens[:, None] == choice.ends, axis=-1)
    return state._replace(
        tokens=tokens,
        past=state.past.grown(tokens, choice.width + state.count),
        finished=state.finished | ended,
        count=state.count + 1,
    )
