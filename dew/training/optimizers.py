"""Optimizers by name, each with torch's arithmetic, clipped and scheduled the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dew.errors import InputRefused, UnknownName, nearest, shown
from dew.training.adam import scale_by_adam

# torch.nn.utils.clip_grad_norm_ divides by the norm plus this.
CLIP_EPSILON = 1e-6


def optimizer(
    name: str,
    rate: Callable[[Any], Any],
    *,
    weight_decay: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    momentum: float = 0.0,
    max_grad_norm: float = 0.0,
    decays: Callable[[Any], Any] | None = None,
) -> optax.GradientTransformation:
    """Return an optimizer whose state tells the learning rate of the last update.

    Args:
        name: one of `OPTIMIZERS`.
        rate: the learning rate of update n, counted from 0.
        weight_decay: of adamw and lion, decoupled, times the rate; of sgd, added to the
            gradient as torch does.
        beta1, beta2: decay of the moments of adam, adamw and lion.
        epsilon: added to the root of the second moment, of adam and adamw.
        momentum: of sgd.
        max_grad_norm: global norm that gradients are scaled down to; 0 leaves them.
        decays: parameters to a tree of booleans, which leaves decay; `decayed` unless told.

    Raises:
        UnknownName: another name.
        InputRefused: adam with weight decay, which is adamw.
    """
    if name not in OPTIMIZERS:
        raise UnknownName(
            f"optimizer {shown(name)}: expected one of {', '.join(OPTIMIZERS)}"
            f"{nearest(name, OPTIMIZERS)}"
        )
    if name == "adam" and weight_decay:
        raise InputRefused(f"weight_decay is {weight_decay} and adam has none; choose adamw")
    decay = optax.add_decayed_weights(weight_decay, mask=decays or decayed)
    clip = [clip_as_torch(max_grad_norm)] if max_grad_norm > 0 else []
    chains: dict[str, Callable[[], list[Any]]] = {
        "adam": lambda: [scale_by_adam(beta1, beta2, epsilon)],
        "adamw": lambda: [scale_by_adam(beta1, beta2, epsilon), decay],
        "lion": lambda: [optax.scale_by_lion(beta1, beta2), decay],
        "sgd": lambda: [decay, *([optax.trace(momentum)] if momentum else [])],
    }
    return optax.chain(*clip, *chains[name](), scaled_by_rate(rate))


OPTIMIZERS = ("adam", "adamw", "lion", "sgd")


def decayed(params: Any) -> Any:
    """Return which leaves decay: all but biases and the scales of norms, as Hugging Face does."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: str(getattr(path[-1], "key", path[-1])) not in ("bias", "scale"), params
    )


class RateState(NamedTuple):
    """Updates so far, and the rate of the last one: the trainer logs what is called that."""

    count: jax.Array
    learning_rate: jax.Array


def scaled_by_rate(rate: Callable[[Any], Any]) -> optax.GradientTransformation:
    """Multiply updates by minus the rate of their number, and keep that rate in the state."""

    def init(params: Any) -> RateState:
        del params
        return RateState(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, RateState]:
        del params
        now = jnp.asarray(rate(state.count), jnp.float32)
        moved = jax.tree.map(lambda leaf: -now.astype(leaf.dtype) * leaf, updates)
        return moved, RateState(state.count + 1, now)

    return optax.GradientTransformation(init, update)


def clip_as_torch(limit: float) -> optax.GradientTransformation:
    """Scale gradients by min(1, limit / (norm + 1e-6)).

    Source: torch 2.14 `clip_grad_norm_`; `optax.clip_by_global_norm` leaves the 1e-6 out.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        scale = jnp.minimum(1.0, limit / (optax.global_norm(updates) + CLIP_EPSILON))
        return jax.tree.map(lambda leaf: leaf * scale.astype(leaf.dtype), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
