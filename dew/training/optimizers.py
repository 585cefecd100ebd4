"""Optimizers by name, each with torch's arithmetic, clipped and scheduled the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dew.errors import InputRefused, UnknownName, nearest, shown
from dew.training import adafactor, muon
from dew.training.adam import scale_by_adam
from dew.training.arguments import Argument, checked
from dew.training.layer_rates import scaled_by_layer
from dew.training.momentum import scale_by_momentum

# torch.nn.utils.clip_grad_norm_ divides by the norm plus this.
CLIP_EPSILON = 1e-6

# What each optimizer may be given beside rate, decay and the moments of Adam.
ARGUMENTS: dict[str, dict[str, Argument]] = {
    "adam": {},
    "adamw": {},
    "adafactor": adafactor.ARGUMENTS,
    "lion": {},
    "muon": muon.ARGUMENTS,
    "sgd": {
        "momentum": Argument("number", 0.0, low=0),
        "dampening": Argument("number", 0.0),
        "nesterov": Argument("switch", False),
    },
}
OPTIMIZERS = tuple(ARGUMENTS)


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
    max_grad_value: float = 0.0,
    layer_decay: float = 1.0,
    decays: Callable[[Any], Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> optax.GradientTransformation:
    """Return an optimizer whose state tells the learning rate of the last update.

    Lion's and plain momentum's arithmetic are optax's; Adam's, Adafactor's and Muon's our own,
    for the reasons in `dew.training.adam`, `.adafactor` and `.muon`.

    Args:
        name: one of `OPTIMIZERS`. "muon" moves two-axis weights inside the network; all else
            moves as adamw at the same rate.
        rate: the learning rate of update n, counted from 0.
        weight_decay: decoupled, times the rate; of sgd, added to the gradient as torch does.
        beta1, beta2: decay of the moments of adam, adamw and lion, and of muon's adamw.
        epsilon: added to the root of the second moment, of adam, adamw and muon's adamw.
        momentum: of sgd.
        max_grad_norm: global norm that gradients are scaled down to; 0 leaves them.
        max_grad_value: largest size of a gradient's element, after that; 0 leaves them.
        layer_decay: each layer's rate over that of the next one above it; see `layer_shares`.
        decays: parameters to a tree of booleans, which leaves decay; `decayed` unless told.
        arguments: further ones by torch's and transformers' names; see `ARGUMENTS`.

    Raises:
        UnknownName: another name, or an argument that it does not take.
        InputRefused: adam with weight decay, which is adamw, or an argument that does not fit.
    """
    if name not in OPTIMIZERS:
        raise UnknownName(
            f"optimizer {shown(name)}: expected one of {', '.join(OPTIMIZERS)}"
            f"{nearest(name, OPTIMIZERS)}"
        )
    if name == "adam" and weight_decay:
        raise InputRefused(f"weight_decay is {weight_decay} and adam has none; choose adamw")
    if name == "sgd" and momentum:
        arguments = {"momentum": momentum, **(arguments or {})}
    more = checked(f"optimizer {name}", arguments, ARGUMENTS[name])
    mask = decays or decayed
    decay = optax.add_decayed_weights(weight_decay, mask=mask)
    adam = scale_by_adam(beta1, beta2, epsilon)
    chains: dict[str, Callable[[], list[Any]]] = {
        "adam": lambda: [adam],
        "adamw": lambda: [adam, decay],
        "adafactor": lambda: [
            adafactor.adafactor(rate, weight_decay=weight_decay, decays=mask, **more)
        ],
        "lion": lambda: [optax.scale_by_lion(beta1, beta2), decay],
        "muon": lambda: [
            optax.partition({"muon": muon.scale_by_muon(**more), "adam": adam}, muon.hidden_or_not),
            decay,
        ],
        "sgd": lambda: [decay, *scale_by_momentum(**more)],
    }
    return optax.chain(
        *([clip_as_torch(max_grad_norm)] if max_grad_norm > 0 else []),
        *([optax.clip(max_grad_value)] if max_grad_value > 0 else []),
        *chains[name](),
        *([scaled_by_layer(layer_decay)] if layer_decay != 1 else []),
        *([scaled_by_rate(rate)] if name != "adafactor" else []),
    )


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
        scale = jnp.minimum(1.0, limit / (optax.tree.norm(updates) + CLIP_EPSILON))
        return jax.tree.map(lambda leaf: leaf * scale.astype(leaf.dtype), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
