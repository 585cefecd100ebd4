"""Continue prompts inside a jitted program: what previews and policy training sample with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dew.errors import InputRefused
from dew.nn.attention import KVCache, causal_mask
from dew.nn.block import Block
from dew.sampling.text import Rules, draw, filtered
from dew.typing import Variables


class Rollout(NamedTuple):
    """Prompts and what follows them.

    Attributes:
        tokens: int32 [N, P + T]; after a row's end, padding.
        mask: int32 [N, P + T], 1 where a token is real, its end included.
        log_probs: float32 [N, T], of each drawn token under the rules it was drawn by, in nats;
            0 at padding.
    """

    tokens: jax.Array
    mask: jax.Array
    log_probs: jax.Array


class _Plan(NamedTuple):
    """What fixes the program."""

    steps: int
    top_k: int | None
    greedy: bool


class _State(NamedTuple):
    """The rows in flight: caches [layers, N, S, G, K], `visible` int32 [N, S]."""

    caches: KVCache
    visible: jax.Array
    tokens: jax.Array
    positions: jax.Array
    finished: jax.Array


def rollout(
    model: Any,
    variables: Variables,
    prompts: jax.Array,
    mask: jax.Array | None = None,
    *,
    steps: int,
    key: jax.Array,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    ends: Sequence[int] = (),
    pad: int = 0,
) -> Rollout:
    """Continue each prompt by `steps` tokens, through the layers that training runs.

    It may be called inside a jitted function. For text a user waits for, `dew.pipeline` is faster.

    Args:
        model: a `CausalTransformer`.
        variables: its variables.
        prompts: int32 [N, P], each row's last token at the right end.
        mask: [N, P], nonzero where a token is real; None where all are.
        steps: T, at least 1; P + T must fit the model's positions.
        key: a row's draws depend on it and on the row's index alone.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: keep only the k likeliest tokens, or None.
        top_p: keep only the likeliest tokens that hold this probability, or None.
        ends: ids that end a row.
        pad: what stands after an end.

    Raises:
        InputRefused: no step, a negative temperature, or more tokens than the model's positions.
    """
    limit = model.position_limit
    length = prompts.shape[1] + steps
    if steps < 1 or temperature < 0 or (limit is not None and length > limit):
        raise InputRefused(
            f"rollout: {prompts.shape[1]} prompt tokens and {steps} new ones at temperature "
            f"{temperature}; give 1 or more new tokens, {limit} in all at most, and a temperature "
            "of 0 or more"
        )
    plan = _Plan(steps, top_k, temperature == 0)
    rules = sampling_rules(temperature, top_k, top_p)
    real = jnp.ones(prompts.shape, jnp.int32) if mask is None else (mask != 0).astype(jnp.int32)
    ending = jnp.asarray([*ends] or [-1], jnp.int32)
    return _continued(
        model, plan, variables, jnp.asarray(prompts, jnp.int32), real, key,
        rules._replace(top_k=None), ending, jnp.int32(pad),
    )  # fmt: skip


def sampling_rules(temperature: float, top_k: int | None, top_p: float | None) -> Rules:
    """Return the rules of a draw; those that change nothing are left out of the program."""
    return Rules(
        temperature=None if temperature in (0, 1) else temperature,
        top_k=top_k,
        top_p=None if top_p in (None, 1) else top_p,
    )


@partial(jax.jit, static_argnums=(0, 1))
def _continued(
    model: Any,
    plan: _Plan,
    variables: Variables,
    prompts: jax.Array,
    real: jax.Array,
    key: jax.Array,
    rules: Rules,
    ends: jax.Array,
    pad: jax.Array,
) -> Rollout:
    rules = rules._replace(top_k=plan.top_k)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(len(prompts)))
    stacked = {name: tree["layers"] for name, tree in variables.items() if "layers" in tree}

    def chosen(logits: jax.Array, state: _State, step: jax.Array | int):
        here = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, step)
        tokens = jnp.argmax(logits, -1) if plan.greedy else draw(logits, here, rules)
        scores = jax.nn.log_softmax(filtered(logits, rules), axis=-1)
        log_probs = jnp.take_along_axis(scores, tokens[:, None], -1)[:, 0]
        going = ~state.finished
        tokens = jnp.where(going, tokens, pad).astype(jnp.int32)
        ended = state.finished | jnp.any(tokens[:, None] == ends, axis=-1)
        state = state._replace(tokens=tokens, finished=ended)
        return state, (tokens, going.astype(jnp.int32), jnp.where(going, log_probs, 0.0))

    def advance(state: _State, step: jax.Array):
        slot = prompts.shape[1] + step - 1
        state = state._replace(visible=state.visible.at[:, slot].set(1))
        logits, caches = _next(model, variables, stacked, state, slot)
        state = state._replace(caches=caches, positions=state.positions + 1)
        return chosen(logits, state, step)

    logits, state = _prefilled(model, variables, stacked, prompts, real, plan.steps)
    state, first = chosen(logits, state, 0)
    _, rest = jax.lax.scan(advance, state, jnp.arange(1, plan.steps))
    made = jax.tree.map(lambda one, more: jnp.concatenate([one[:, None], more.T], 1), first, rest)
    tokens, going, log_probs = made
    return Rollout(
        jnp.concatenate([prompts, tokens], axis=1), jnp.concatenate([real, going], 1), log_probs
    )


def _prefilled(
    model: Any, variables: Variables, stacked: dict, prompts: jax.Array, real: jax.Array, room: int
) -> tuple[jax.Array, _State]:
    """Return the logits [N, V] after the prompts, and the state with their keys and values."""
    spec = model.block_spec
    positions = jnp.maximum(jnp.cumsum(real, axis=1) - 1, 0)
    shape = (*prompts.shape, spec.num_kv_heads, spec.head_features)
    empty = KVCache(jnp.zeros(shape, spec.dtype), jnp.zeros(shape, spec.dtype))
    sight = model.sight(positions, causal_mask(real, None))

    def layer(x: jax.Array, part: tuple[dict, Any]):
        return Block(spec).apply(part[0], x, sight, part[1], empty, 0)

    x = model.apply(variables, prompts, positions, method="embedded")
    step: Any = layer
    x, filled = jax.lax.scan(step, x, (stacked, sight.kind))
    caches = jax.tree.map(
        lambda part: jnp.pad(part, ((0, 0), (0, 0), (0, room), (0, 0), (0, 0))), filled
    )
    state = _State(
        caches=caches,
        visible=jnp.pad(real, ((0, 0), (0, room))),
        tokens=prompts[:, -1],
        positions=jnp.sum(real, axis=1),
        finished=jnp.zeros(len(prompts), bool),
    )
    return model.apply(variables, x[:, -1], method="next_logits"), state


def _next(
    model: Any, variables: Variables, stacked: dict, state: _State, slot: jax.Array
) -> tuple[jax.Array, KVCache]:
    """Return the logits [N, V] after one more token a row, and the caches that hold it."""
    spec = model.block_spec
    positions = state.positions[:, None]
    sight = model.sight(positions, (state.visible != 0)[:, None, None, :], slot)

    def layer(x: jax.Array, part: tuple[dict, Any, KVCache]):
        return Block(spec).apply(part[0], x, sight, part[1], part[2], slot)

    x = model.apply(variables, state.tokens[:, None], positions, method="embedded")
    scanned: Any = (stacked, sight.kind, state.caches)
    step: Any = layer
    x, caches = jax.lax.scan(step, x, scanned)
    return model.apply(variables, x[:, 0], method="next_logits"), caches
