"""Log-probabilities of given tokens under a model, a chunk of logits at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dew.nn.attention import capped
from dew.sampling.text import Rules, filtered
from dew.typing import Variables

LOGIT_BYTES = 128 * 2**20
"""How many bytes of float32 logits exist at one time."""


class TokenLogProbs(NamedTuple):
    """What a model says of each token of its input but the first; float32 [B, L - 1] all, nats.

    Attributes:
        drawn: under the distribution that `rules` leave; -inf where they rule the token out.
        plain: under the softmax of the logits over the temperature alone.
        entropy: of that softmax; no gradient flows through it.
    """

    drawn: jax.Array
    plain: jax.Array
    entropy: jax.Array


def token_log_probs(
    model: Any,
    variables: Variables,
    tokens: jax.Array,
    mask: jax.Array | None,
    *,
    rules: Rules = Rules(),  # noqa: B008 (immutable)
    chunk: int | None = None,
) -> TokenLogProbs:
    """Return the log-probability of each token after the first, given those before it.

    Args:
        model: a `CausalTransformer`.
        variables: its variables; differentiable.
        tokens: int32 [B, L].
        mask: [B, L], nonzero where a token is real; None where all are.
        rules: what a sampler did to the logits before it drew.
        chunk: tokens whose logits exist at one time; None fits them into `LOGIT_BYTES`.
    """
    seen = None if mask is None else mask[:, :-1]
    out: Any = model.apply(variables, tokens[:, :-1], mask=seen, method="hidden_and_table")
    hidden, table = out
    rows = hidden.reshape(-1, hidden.shape[-1])
    targets = tokens[:, 1:].reshape(-1)
    size = chunk or max(1, LOGIT_BYTES // (4 * table.shape[0]))
    table = table.astype(rows.dtype)
    scores = _scores(rows, table, targets, rules, min(size, len(rows)), model.logit_cap)
    shape = tokens[:, 1:].shape
    return TokenLogProbs(*(part.reshape(shape) for part in scores))


def _scores(
    rows: jax.Array,
    table: jax.Array,
    targets: jax.Array,
    rules: Rules,
    chunk: int,
    cap: float | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    count = len(rows)
    extra = -count % chunk
    rows = jnp.pad(rows, ((0, extra), (0, 0))).reshape(-1, chunk, rows.shape[-1])
    wanted = jnp.pad(targets, (0, extra)).reshape(-1, chunk)

    def one(_: None, part: tuple[jax.Array, jax.Array]):
        logits = jnp.einsum("nd,vd->nv", part[0], table, preferred_element_type=jnp.float32)
        logits = logits if cap is None else capped(logits, cap)
        plain = jax.nn.log_softmax(filtered(logits, Rules(temperature=rules.temperature)))
        drawn = plain
        if rules.top_k is not None or rules.top_p is not None or rules.min_p is not None:
            drawn = jax.nn.log_softmax(filtered(logits, rules))
        fixed = jax.lax.stop_gradient(plain)
        entropy = -jnp.sum(jnp.exp(fixed) * fixed, axis=-1)
        return None, (_at(drawn, part[1]), _at(plain, part[1]), entropy)

    # Otherwise the backward pass would keep the logits of every chunk.
    step: Any = jax.checkpoint(one, prevent_cse=False)
    _, scores = jax.lax.scan(step, None, (rows, wanted))
    drawn, plain, entropy = (part.reshape(-1)[:count] for part in scores)
    return drawn, plain, entropy


def _at(scores: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.take_along_axis(scores, targets[:, None], axis=-1)[:, 0]


def prompts_alone(
    tokens: jax.Array, mask: jax.Array, completion: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return each row's tokens before its completion, moved to the right end of L slots.

    Args:
        tokens: int32 [B, L].
        mask: [B, L], nonzero where a token is real.
        completion: [B, L], nonzero at the tokens of the completion.

    Returns:
        int32 [B, L] tokens and mask.
    """
    length = tokens.shape[1]
    starts = jnp.argmax(completion != 0, axis=1)
    index = jnp.arange(length)[None] - (length - starts[:, None])
    at = jnp.clip(index, 0, length - 1)
    real = (index >= 0) & (jnp.take_along_axis(mask, at, axis=1) != 0)
    moved = jnp.where(real, jnp.take_along_axis(tokens, at, axis=1), 0)
    return moved, real.astype(jnp.int32)


def real_tokens(batch: Mapping[str, jax.Array], field: str, like: jax.Array) -> jax.Array:
    """Return a batch's mask of real tokens, all ones where it holds none."""
    given = batch.get(field)
    return jnp.ones(like.shape, jnp.int32) if given is None else given
