"""What a layer may look at and how it turns positions, where layers differ among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

Turn = tuple[jax.Array, jax.Array]


class Sight(NamedTuple):
    """The arguments of a stack of blocks beside its input.

    Where all layers are alike, `turn` (cos and sin) and `mask` are theirs and `kind` is None. Else
    both have a first axis of kinds, and `kind` int32 [layers] says which is each layer's.
    """

    turn: Turn | None
    mask: jax.Array | None
    kind: jax.Array | None = None

    @classmethod
    def of(
        cls,
        turns: Sequence[Turn | None],
        masks: Sequence[jax.Array | None],
        kinds: Sequence[int],
        length: int,
    ) -> Sight:
        """Return the sight of layers of several kinds.

        Args:
            turns: each kind's cos and sin, or None in all.
            masks: each kind's mask bool [B, 1, L, S]; None for causal (S = L).
            kinds: each layer's index into both.
            length: L.
        """
        if len(turns) == 1:
            return cls(turns[0], masks[0])
        if all(mask is masks[0] for mask in masks) and all(turn is turns[0] for turn in turns):
            return cls(turns[0], masks[0])
        causal = jnp.tril(jnp.ones((length, length), bool))[None, None]
        whole = [causal if mask is None else mask for mask in masks]
        shape = jnp.broadcast_shapes(*(mask.shape for mask in whole))
        return cls(
            None if turns[0] is None else jax.tree.map(lambda *parts: jnp.stack(parts), *turns),
            jnp.stack([jnp.broadcast_to(mask, shape) for mask in whole]),
            jnp.asarray(kinds, jnp.int32),
        )

    def layer(self, kind: jax.Array | None) -> tuple[Turn | None, jax.Array | None]:
        """Return turn and mask of a layer, `kind` being its element of `self.kind`."""
        if kind is None:
            return self.turn, self.mask
        return jax.tree.map(lambda part: part[kind], (self.turn, self.mask))


def near(
    mask: jax.Array | None, length: int, window: int, slot: jax.Array | int = 0
) -> jax.Array | None:
    """Return `mask` cut to the `window` slots that end at each query.

    Args:
        mask: bool [B, 1, L, S], or None for causal (S = L).
        length: L.
        window: how many slots a query sees, its own included.
        slot: the slot of the first query.
    """
    slots = length if mask is None else mask.shape[-1]
    if window >= slots:
        return mask
    query, key = slot + jnp.arange(length)[:, None], jnp.arange(slots)[None]
    close = key > query - window
    if mask is None:
        return (close & (key <= query))[None, None]
    return mask & close[None, None]
