"""The momentum of SGD as torch computes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dew.errors import InputRefused


class DampenedState(NamedTuple):
    """Updates so far, and the sum of past gradients."""

    count: jax.Array
    trace: Any


def scale_by_momentum(
    *, momentum: float, dampening: float = 0.0, nesterov: bool = False
) -> list[optax.GradientTransformation]:
    """Return what turns a gradient into SGD's direction: nothing, optax's trace, or ours.

    Args:
        momentum: decay of the sum of gradients; 0 keeps none.
        dampening: a new gradient is added times 1 - dampening, but the first one whole.
        nesterov: add the gradient to the decayed sum once more.

    Raises:
        InputRefused: nesterov without momentum or with dampening.

    Source: torch 2.14 `torch.optim.SGD`; `optax.trace` is the same without dampening.
    """
    if nesterov and (momentum <= 0 or dampening):
        raise InputRefused(
            f"nesterov needs a momentum and no dampening; they are {momentum} and {dampening}"
        )
    if not momentum:
        return []
    if not dampening:
        return [optax.trace(momentum, nesterov=nesterov)]

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        share = jnp.where(state.count == 0, 1.0, 1.0 - dampening)
        trace = jax.tree.map(
            lambda g, m: momentum * m + share.astype(g.dtype) * g, updates, state.trace
        )
        return trace, DampenedState(state.count + 1, trace)

    def init(params: Any) -> DampenedState:
        return DampenedState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    return [optax.GradientTransformation(init, update)]
