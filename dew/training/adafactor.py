"""Adafactor as transformers computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dew.errors import InputRefused
from dew.training.arguments import Argument
from dew.training.views import View, views_of

ARGUMENTS = {
    "eps": Argument("numbers", (1e-30, 1e-3), count=2, low=0),
    "clip_threshold": Argument("number", 1.0, low=1e-30),
    "decay_rate": Argument("number", -0.8, high=0),
    "beta1": Argument("number", low=0, high=0.9999999),
    "scale_parameter": Argument("switch", False),
    "relative_step": Argument("switch", False),
    "warmup_init": Argument("switch", False),
}


class AdafactorState(NamedTuple):
    """Updates so far, the last rate, and the moments; a leaf has those it needs, others are ().

    `row` and `column` are the means of a matrix's squares over its last axis and the one before,
    `full` the squares of a vector, `mean` the moved updates if there is a `beta1`.
    """

    count: jax.Array
    learning_rate: jax.Array
    row: Any
    column: Any
    full: Any
    mean: Any


def adafactor(
    rate: Callable[[Any], Any],
    *,
    weight_decay: float = 0.0,
    decays: Callable[[Any], Any],
    eps: tuple[float, float] = (1e-30, 1e-3),
    clip_threshold: float = 1.0,
    decay_rate: float = -0.8,
    beta1: float | None = None,
    scale_parameter: bool = False,
    relative_step: bool = False,
    warmup_init: bool = False,
) -> optax.GradientTransformation:
    """Return Adafactor, its rate and its weight decay in it.

    Layers of a stack are parameters of their own, and a map to heads is a matrix, as in torch.
    `scale_parameter` and `relative_step` are off, as transformers' Trainer sets them; the class
    itself has both on.

    Args:
        rate: of update n, counted from 0; unread with `relative_step`.
        weight_decay: times the rate, of those that `decays`.
        decays: parameters to a tree of booleans.
        eps: added to the squares; the least size of a parameter that scales its rate.
        clip_threshold: the largest root mean square of an update before the rate.
        decay_rate: the squares' share of update t, counted from 1, is t to this power.
        beta1: decay of the moving average of updates; None keeps none.
        scale_parameter: multiply the rate by the root mean square of the parameter.
        relative_step: take min(1e-2, 1 / sqrt(t)) as the rate.
        warmup_init: with `relative_step`, 1e-6 t in place of 1e-2.

    Raises:
        InputRefused: `warmup_init` without `relative_step`.

    Source: `Adafactor` of transformers 5.24. `optax.adafactor` factors by size, clips whole
    stacks, and decays and averages apart from the rate.
    """
    if warmup_init and not relative_step:
        raise InputRefused("adafactor: warmup_init is of relative_step; set that too")

    def init(params: Any) -> AdafactorState:
        leaves, tree = jax.tree.flatten(params)
        kept = [_empty(leaf, view, beta1) for leaf, view in _seen(leaves, params)]
        row, column, full, mean = (tree.unflatten(part) for part in zip(*kept, strict=True))
        zero = jnp.zeros((), jnp.float32)
        return AdafactorState(jnp.zeros((), jnp.int32), zero, row, column, full, mean)

    def now(count: jax.Array, step: jax.Array) -> jax.Array:
        if not relative_step:
            return jnp.asarray(rate(count), jnp.float32)
        most = 1e-6 * step if warmup_init else jnp.float32(1e-2)
        return jnp.minimum(most, jax.lax.rsqrt(step))

    def update(updates: Any, state: AdafactorState, params: Any = None) -> tuple[Any, Any]:
        step = (state.count + 1).astype(jnp.float32)
        new, rates = jnp.power(step, decay_rate), now(state.count, step)
        gradients, tree = jax.tree.flatten(updates)
        weights = tree.flatten_up_to(params)
        moments = [tree.flatten_up_to(part) for part in state[2:]]
        decaying = tree.flatten_up_to(decays(params))
        moved = []
        for (weight, view), gradient, decay, row, column, full, mean in zip(
            _seen(weights, params), gradients, decaying, *moments, strict=True
        ):
            g, w = gradient.reshape(view.shape), weight.reshape(view.shape)
            row, column, full, scaled = _scaled(g, view, new, eps[0], row, column, full)
            clipped = scaled / jnp.maximum(1.0, _rms(scaled, view) / clip_threshold)
            size = jnp.maximum(eps[1], _rms(w, view)) if scale_parameter else 1.0
            change = rates * size * clipped
            if beta1 is not None:
                mean = beta1 * mean + (1.0 - beta1) * change
                change = mean
            taken = rates * size * weight_decay * w if weight_decay and decay else 0.0
            moved.append((row, column, full, mean, -(change + taken).reshape(weight.shape)))
        *kept, changes = (tree.unflatten(part) for part in zip(*moved, strict=True))
        return changes, AdafactorState(state.count + 1, rates, *kept)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def _seen(leaves: list[Any], params: Any) -> list[tuple[Any, View]]:
    return list(zip(leaves, jax.tree.leaves(views_of(params)), strict=True))


def _empty(leaf: Any, view: View, beta1: float | None) -> tuple[jax.Array, ...]:
    shape, none = view.shape, ()
    shapes = (
        shape[:-1] if view.matrix else none,
        (*shape[:-2], shape[-1]) if view.matrix else none,
        none if view.matrix else shape,
        none if beta1 is None else shape,
    )
    return tuple(jnp.zeros(each, leaf.dtype) for each in shapes)


def _rms(value: jax.Array, view: View) -> jax.Array:
    return jnp.sqrt(jnp.mean(value * value, axis=view.own_axes, keepdims=True))


def _scaled(
    g: jax.Array, view: View, new: jax.Array, eps: float, row: Any, column: Any, full: Any
) -> tuple[Any, Any, Any, jax.Array]:
    """Return the moments of the squares, and the gradient over their root."""
    square = g * g + eps

    def mixed(old: jax.Array, value: jax.Array) -> jax.Array:
        return (1.0 - new) * old + new * value

    if not view.matrix:
        full = mixed(full, square)
        return row, column, full, jax.lax.rsqrt(full) * g
    row, column = mixed(row, square.mean(-1)), mixed(column, square.mean(-2))
    across = jax.lax.rsqrt(row / row.mean(-1, keepdims=True))[..., None]
    return row, column, full, across * jax.lax.rsqrt(column)[..., None, :] * g
