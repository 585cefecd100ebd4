"""The rules that turn next-token logits into the next token, in transformers' order."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

REMOVED = -jnp.inf


class Rules(NamedTuple):
    """Which rules apply, and how strongly; None switches one off.

    `top_k` is a Python int, for it fixes a shape; the rest may be traced.
    """

    temperature: jax.Array | float | None = None
    top_k: int | None = None
    top_p: jax.Array | float | None = None
    min_p: jax.Array | float | None = None


def penalize_repetition(logits: jax.Array, seen: jax.Array, penalty: jax.Array | float):
    """Return logits with each seen token's one divided by `penalty` if positive, else multiplied.

    Args:
        logits: [N, V].
        seen: bool [N, V], True for a token of the row's prompt or of what it generated.
        penalty: above 0; 1 changes nothing, above 1 discourages repetition.

    Source: Keskar et al. 2019, arXiv:1909.05858, for both signs as in transformers 5.24.
    """
    penalized = jnp.where(logits < 0, logits * penalty, logits / penalty)
    return jnp.where(seen, penalized, logits)


def forbid(logits: jax.Array, ids: jax.Array, when: jax.Array | bool = True) -> jax.Array:
    """Return logits [N, V] with the tokens `ids` [E] at minus infinity, where `when` [N] holds."""
    banned = jnp.zeros(logits.shape[-1], bool).at[ids].set(True, mode="drop")
    when = jnp.broadcast_to(jnp.asarray(when), logits.shape[:1])
    return jnp.where(when[:, None] & banned, REMOVED, logits)


def scale_temperature(logits: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Return logits / temperature; `temperature` is above 0."""
    return logits / temperature


def keep_top_k(logits: jax.Array, k: int) -> jax.Array:
    """Return logits [N, V] with all below the k-th largest at minus infinity; its equals stay."""
    least = jax.lax.top_k(logits, min(k, logits.shape[-1]))[0][..., -1:]
    return jnp.where(logits < least, REMOVED, logits)


def keep_top_p(logits: jax.Array, p: jax.Array | float) -> jax.Array:
    """Return logits with the least likely tokens removed while they hold at most 1 - p together.

    Among equals the lower id goes first. The likeliest token always stays.

    Args:
        logits: [N, V].
        p: in (0, 1].

    Source: Holtzman et al. 2019, arXiv:1904.09751, with transformers 5.24's order and ties.
    """
    order = jnp.argsort(logits, axis=-1, stable=True)
    removed = _nucleus_removes(jnp.take_along_axis(logits, order, axis=-1), p)
    rows = jnp.arange(logits.shape[0])[:, None]
    return jnp.where(jnp.zeros_like(removed).at[rows, order].set(removed), REMOVED, logits)


def keep_min_p(logits: jax.Array, p: jax.Array | float) -> jax.Array:
    """Return logits with tokens less likely than p times the likeliest one removed.

    Args:
        logits: [N, V].
        p: in [0, 1].

    Source: Nguyen et al. 2024, arXiv:2407.01082.
    """
    probabilities = jax.nn.softmax(logits, axis=-1)
    top = jnp.max(probabilities, axis=-1, keepdims=True)
    removed = (probabilities < p * top) & (logits < jnp.max(logits, axis=-1, keepdims=True))
    return jnp.where(removed, REMOVED, logits)


def filtered(logits: jax.Array, rules: Rules) -> jax.Array:
    """Return logits [N, V] after temperature, top-k, top-p and min-p, in that order."""
    if rules.temperature is not None:
        logits = scale_temperature(logits, rules.temperature)
    if rules.top_k is not None:
        logits = keep_top_k(logits, rules.top_k)
    if rules.top_p is not None:
        logits = keep_top_p(logits, rules.top_p)
    if rules.min_p is not None:
        logits = keep_min_p(logits, rules.min_p)
    return logits


def draw(logits: jax.Array, keys: jax.Array, rules: Rules) -> jax.Array:
    """Draw one token a row from the softmax of `filtered`.

    Args:
        logits: [N, V].
        keys: [N] keys; a row's draw depends on its own logits and key alone.
        rules: see `Rules`.

    Returns:
        int32 [N].
    """
    if rules.top_k is None or rules.top_k >= logits.shape[-1]:
        return _categorical(filtered(logits, rules), keys)
    if rules.temperature is not None:
        logits = scale_temperature(logits, rules.temperature)
    values, ids = jax.lax.top_k(logits, rules.top_k)
    # Beyond k there may be equals of the k-th, which top-k keeps: then sort the whole row.
    tied = jnp.sum(logits >= values[:, -1:], axis=-1) > rules.top_k
    rest = rules._replace(temperature=None)
    return jax.lax.cond(
        jnp.any(tied),
        lambda: _categorical(filtered(logits, rest), keys),
        lambda: _draw_among(values, ids, keys, rest._replace(top_k=None)),
    )


def _draw_among(values, ids, keys, rules: Rules) -> jax.Array:
    """Draw from k candidates, laid by id so that ties fall as they do in the whole row."""
    ids, values = jax.lax.sort((ids, values), num_keys=1, dimension=-1)
    chosen = _categorical(filtered(values, rules), keys)
    return jnp.take_along_axis(ids, chosen[:, None], axis=-1)[:, 0]


def _nucleus_removes(ascending: jax.Array, p: jax.Array | float) -> jax.Array:
    cumulative = jnp.cumsum(jax.nn.softmax(ascending, axis=-1), axis=-1)
    return (cumulative <= 1 - p).at[..., -1].set(False)


def _categorical(logits: jax.Array, keys: jax.Array) -> jax.Array:
    drawn = jax.vmap(lambda key, row: jax.random.categorical(key, row))(keys, logits)
    return drawn.astype(jnp.int32)
