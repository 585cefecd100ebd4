"""AdamW as torch computes it, with Hugging Face's schedules, clipping and exemptions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dew.training.adam import scale_by_adam

# torch.nn.utils.clip_grad_norm_ divides by the norm plus this.
CLIP_EPSILON = 1e-6


@dataclass(frozen=True)
class AdamW:
    """The numbers of an optimizer, by Hugging Face's names.

    Args:
        learning_rate: the highest rate.
        schedule: "linear", "cosine", "constant" or "constant_with_warmup".
        warmup_steps: updates of rising rate; below 1 a share of `total`.
        total: updates of the whole run.
        weight_decay: decoupled decay, times the rate; none on biases and norms.
        beta1, beta2: decay of the first and second moment.
        epsilon: added to the root of the second moment.
        max_grad_norm: global norm that gradients are scaled down to; 0 leaves them.
    """

    learning_rate: float
    schedule: str
    warmup_steps: float
    total: int
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    max_grad_norm: float = 1.0

    def transform(self) -> optax.GradientTransformation:
        """Return the optax chain: clip, moments, decay, rate."""
        clip = [clip_as_torch(self.max_grad_norm)] if self.max_grad_norm > 0 else []
        return optax.chain(
            *clip,
            scale_by_adam(self.beta1, self.beta2, self.epsilon),
            optax.add_decayed_weights(self.weight_decay, mask=decayed),
            scaled_by_rate(self.rate()),
        )

    def rate(self) -> Callable[[Any], Any]:
        """Return the learning rate of update n, counted from 0."""
        return learning_rate(self.learning_rate, self.schedule, self.warmup_steps, self.total)


def learning_rate(
    peak: float, schedule: str, warmup_steps: float, total: int
) -> Callable[[Any], jax.Array]:
    """Return the rate as a function of the update, counted from 0.

    Args:
        peak: the highest rate.
        schedule: a name of `AdamW.schedule`.
        warmup_steps: updates of rising rate; below 1 a share of `total`, rounded up.
        total: updates of the whole run.

    Source: transformers 5.24 `optimization.py`: rate 0 at update 0 of a warmup, and 0 at `total`.
    """
    warmup = warmup_updates(warmup_steps, total) if schedule != "constant" else 0

    def rate(update: Any) -> jax.Array:
        update = jnp.asarray(update, jnp.float32)
        progress = jnp.clip((update - warmup) / max(1, total - warmup), 0.0, 1.0)
        falling = {
            "linear": 1.0 - progress,
            "cosine": 0.5 * (1.0 + jnp.cos(math.pi * progress)),
        }.get(schedule, jnp.ones_like(progress))
        return peak * jnp.where(update < warmup, update / max(1, warmup), falling)

    return rate


def warmup_updates(warmup_steps: float, total: int) -> int:
    """Return the updates of the warmup: a value below 1 is a share of `total`, rounded up."""
    return math.ceil(total * warmup_steps) if warmup_steps < 1 else int(warmup_steps)


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
