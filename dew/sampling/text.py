"""The rules that turn next-token logits into the next token, in transformers' order."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

REMOVED = -jnp.inf
TOP_H_TOKENS = 100


class Rules(NamedTuple):
    """Which rules apply, and how strongly; None switches one off.

    `top_k` is a Python int, for it fixes a shape; the rest may be traced.
    """

    temperature: jax.Array | float | None = None
    top_k: int | None = None
    top_p: jax.Array | float | None = None
    min_p: jax.Array | float | None = None
    top_h: jax.Array | float | None = None
    typical_p: jax.Array | float | None = None
    epsilon: jax.Array | float | None = None
    eta: jax.Array | float | None = None

    @property
    def reads_whole_rows(self) -> bool:
        """Whether a rule needs more than the k likeliest tokens."""
        after = (self.top_h, self.typical_p, self.epsilon, self.eta)
        return any(rule is not None for rule in after)


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
    removed = (probabilities < p * top) & (logits < _largest(logits))
    return jnp.where(removed, REMOVED, logits)


def keep_top_h(logits: jax.Array, share: jax.Array | float) -> jax.Array:
    """Return logits with the likeliest tokens kept while they hold that share of the entropy.

    Args:
        logits: [N, V]; of them the 100 likeliest are looked at.
        share: in (0, 1].

    Source: Potraghloo et al. 2025, arXiv:2509.02510, as in transformers 5.24.
    """
    top, ids = jax.lax.top_k(logits, min(TOP_H_TOKENS, logits.shape[-1]))
    scores = jax.nn.log_softmax(top, axis=-1)
    terms = -jnp.exp(scores) * jnp.where(jnp.isfinite(scores), scores, 0.0)
    kept = jnp.cumsum(terms, axis=-1) <= jnp.sum(terms, axis=-1, keepdims=True) * share
    rows = jnp.arange(len(logits))[:, None]
    keep = jnp.zeros(logits.shape, bool).at[rows, ids].set(kept.at[:, 0].set(True))
    return jnp.where(keep, logits, REMOVED)


def keep_typical(logits: jax.Array, mass: jax.Array | float) -> jax.Array:
    """Return logits with the tokens kept whose surprise is nearest the expected one.

    Args:
        logits: [N, V].
        mass: what they hold together, in (0, 1).

    Source: Meister et al. 2022, arXiv:2202.00666.
    """
    scores = jax.nn.log_softmax(logits, axis=-1)
    shares = jnp.exp(scores)
    surprise = -jnp.sum(jnp.where(shares > 0, shares * scores, 0.0), axis=-1, keepdims=True)
    away = jnp.abs(-scores - surprise)
    order = jnp.argsort(away, axis=-1, stable=True)
    held = jnp.cumsum(jax.nn.softmax(jnp.take_along_axis(logits, order, -1), axis=-1), axis=-1)
    last = jnp.minimum(jnp.sum(held < mass, axis=-1, keepdims=True), logits.shape[-1] - 1)
    bound = jnp.take_along_axis(jnp.take_along_axis(away, order, -1), last, -1)
    nearest = jnp.arange(logits.shape[-1]) == order[:, :1]
    return jnp.where((away > bound) & ~nearest, REMOVED, logits)


def keep_likely(logits: jax.Array, least: jax.Array | float) -> jax.Array:
    """Return logits with tokens less likely than `least` ([N, 1] or one) removed, one aside.

    Source: Hewitt et al. 2022, arXiv:2210.15191 (epsilon sampling).
    """
    unlikely = jax.nn.softmax(logits, axis=-1) < least
    return jnp.where(unlikely & (logits < _largest(logits)), REMOVED, logits)


def keep_eta(logits: jax.Array, epsilon: jax.Array | float) -> jax.Array:
    """Return `keep_likely` of a bound that falls with the entropy: eta sampling.

    Args:
        logits: [N, V].
        epsilon: in (0, 1).

    Source: Hewitt et al. 2022, arXiv:2210.15191.
    """
    scores = jax.nn.log_softmax(logits, axis=-1)
    shares = jnp.exp(scores)
    entropy = -jnp.sum(jnp.where(shares > 0, shares * scores, 0.0), axis=-1, keepdims=True)
    bound = jnp.sqrt(jnp.float32(epsilon)) * jnp.exp(-entropy)
    return keep_likely(logits, jnp.minimum(epsilon, bound))


def filtered(logits: jax.Array, rules: Rules) -> jax.Array:
    """Return logits [N, V] after the rules, in transformers' order."""
    if rules.temperature is not None:
        logits = scale_temperature(logits, rules.temperature)
    if rules.top_h is not None:
        logits = keep_top_h(logits, rules.top_h)
    if rules.top_k is not None:
        logits = keep_top_k(logits, rules.top_k)
    if rules.top_p is not None:
        logits = keep_top_p(logits, rules.top_p)
    if rules.min_p is not None:
        logits = keep_min_p(logits, rules.min_p)
    if rules.typical_p is not None:
        logits = keep_typical(logits, rules.typical_p)
    if rules.epsilon is not None:
        logits = keep_likely(logits, rules.epsilon)
    return logits if rules.eta is None else keep_eta(logits, rules.eta)


def draw(logits: jax.Array, keys: jax.Array, rules: Rules) -> jax.Array:
    """Draw one token a row from the softmax of `filtered`.

    Args:
        logits: [N, V].
        keys: [N] keys; a row's draw depends on its own logits and key alone.
        rules: see `Rules`.

    Returns:
        int32 [N].
    """
    if rules.top_k is None or rules.top_k >= logits.shape[-1] or rules.reads_whole_rows:
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


def _largest(logits: jax.Array) -> jax.Array:
    return jnp.max(logits, axis=-1, keepdims=True)


def _nucleus_removes(ascending: jax.Array, p: jax.Array | float) -> jax.Array:
    cumulative = jnp.cumsum(jax.nn.softmax(ascending, axis=-1), axis=-1)
    return (cumulative <= 1 - p).at[..., -1].set(False)


def _categorical(logits: jax.Array, keys: jax.Array) -> jax.Array:
    drawn = jax.vmap(lambda key, row: jax.random.categorical(key, row))(keys, logits)
    return drawn.astype(jnp.int32)
