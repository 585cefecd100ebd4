"""Layers of one kind, their parameters stacked along a first axis and scanned."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.nn.block import Block, BlockSpec


def block_stack(spec: BlockSpec, layers: int, *, remat: bool = False) -> Any:
    """Return a module that runs `layers` blocks of `spec`, called as in `layers(x, sight, kinds)`.

    `kinds` is `sight.kind`; see `Block`.

    Args:
        spec: the sizes of each.
        layers: how many.
        remat: recompute each layer in the backward pass instead of keeping its activations.
    """
    block = nn.remat(Block, prevent_cse=False) if remat else Block
    return nn.scan(
        block,
        variable_axes={"params": 0, "lora": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(nn.broadcast, 0),  # pyright: ignore[reportArgumentType]
        length=layers,
    )(spec)


def full_mask(length: int, mask: jax.Array | None, segments: jax.Array | None) -> jax.Array:
    """Return bool [B or 1, 1, L, L]: all real tokens of the same document, earlier and later ones.

    Args:
        length: L.
        mask: [B, L], nonzero where a token is real, or None.
        segments: int32 [B, L], the document of each token and 0 for padding, or None.
    """
    allowed = jnp.ones((1, length, length), bool)
    if mask is not None:
        allowed = allowed & (mask != 0)[:, None, :]
    if segments is not None:
        allowed = allowed & (segments[:, :, None] == segments[:, None, :])
    return allowed[:, None]
