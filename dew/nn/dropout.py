"""Dropout: rates that a model carries, drawn only where a `dropout` key is given to `apply`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

LEVELS = 2**16
STREAM = "dropout"


@dataclass(frozen=True)
class Dropout:
    """The shares of values that are zeroed while a model learns, each from 0 to below 1.

    Args:
        embedding: of the embeddings, behind their norm.
        attention: of the attention weights.
        attention_out: of what attention adds to the residual stream.
        mlp_inner: of the values between an MLP's maps.
        mlp_out: of what an MLP adds to the residual stream.
        final: of the states behind the last layer and its norm.
        head_in: of the states that a head is given.
        head_out: of what a head's last map is given.

    Source: Srivastava et al. 2014, JMLR 15; the places are those of transformers' classes.
    """

    embedding: float = 0.0
    attention: float = 0.0
    attention_out: float = 0.0
    mlp_inner: float = 0.0
    mlp_out: float = 0.0
    final: float = 0.0
    head_in: float = 0.0
    head_out: float = 0.0


NO_DROPOUT = Dropout()


class Kept(NamedTuple):
    """Which values stay, and what these are multiplied by so that the mean stays too."""

    mask: jax.Array
    factor: float


def streams(model: nn.Module, key: jax.Array | None) -> dict[str, jax.Array]:
    """Return what `apply` takes as `rngs` where `model` learns.

    Args:
        model: whose `dropout` says what is zeroed; most have none.
        key: to draw with; None where it does not learn.
    """
    rates = getattr(model, "dropout", NO_DROPOUT)
    return {} if key is None or rates == NO_DROPOUT else {STREAM: key}


def drawn(module: nn.Module, shape: tuple[int, ...], rate: float) -> Kept | None:
    """Return which values of `shape` stay, or None where all do.

    Args:
        module: whose `dropout` key is drawn from; without one nothing is zeroed.
        shape: of the values, at least one axis.
        rate: the share to zero, rounded to a multiple of 2^-16.
    """
    level = round(rate * LEVELS)
    if not level or not module.has_rng(STREAM):
        return None
    # Two draws from each word: drawing is most of what dropout costs.
    *rest, last = shape
    words = jax.random.bits(module.make_rng(STREAM), (*rest, -(-last // 2)), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*rest, -1)[..., :last]
    return Kept(halves >= level, LEVELS / (LEVELS - level))


def dropped(module: nn.Module, x: jax.Array, rate: float) -> jax.Array:
    """Return `x` with a share of its values zeroed and the others scaled; arguments as above."""
    kept = drawn(module, x.shape, rate)
    if kept is None:
        return x
    return jnp.where(kept.mask, x * jnp.asarray(kept.factor, x.dtype), 0)
