"""One layer of a decoder that reads an encoder: its own tokens, the encoder's states, an MLP."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.nn.attention import KVCache, weights_shape
from dew.nn.backbones.encoder_block import block_axes, heads_map, look, norm_axes, norms_of, out_map
from dew.nn.block import MLP, BlockSpec
from dew.nn.dropout import drawn, dropped


class Reading(NamedTuple):
    """What all layers share: masks bool [B or 1, 1, L, S] and [B, 1, 1, P], the encoder's states.

    `bias` [1, H, L, S] is added to the scores of a layer's own tokens, or None.
    """

    mask: jax.Array
    bias: jax.Array | None
    memory: jax.Array
    memory_mask: jax.Array


class Kept(NamedTuple):
    """Keys and values of one layer: of the tokens so far [B, S, H, K], and of the encoder's states.

    `read` is None until the states were read.
    """

    own: KVCache
    read: KVCache | None


class OwnAttention(nn.Module):
    """Attention to a decoder's own tokens."""

    spec: BlockSpec

    @nn.compact
    def __call__(
        self, x: jax.Array, reading: Reading, cache: KVCache | None, slot: jax.Array | int
    ) -> tuple[jax.Array, KVCache | None]:
        """Return [B, L, D], and the cache with the tokens of `x` [B, L, D] from `slot` on."""
        spec = self.spec
        query, key, value = (heads_map(spec, name)(x) for name in ("query", "key", "value"))
        if cache is not None:
            start = (0, slot, 0, 0)
            key = jax.lax.dynamic_update_slice(cache.keys, key, start)
            value = jax.lax.dynamic_update_slice(cache.values, value, start)
            cache = KVCache(key, value)
        mixed = look(
            query,
            key,
            value,
            reading.mask,
            reading.bias,
            spec.attention_impl,
            spec.score_scale,
            drawn(self, weights_shape(query, key), spec.dropout.attention),
        )
        return dropped(self, out_map(spec)(mixed), spec.dropout.attention_out), cache


class CrossAttention(nn.Module):
    """Attention to an encoder's states."""

    spec: BlockSpec

    @nn.compact
    def __call__(
        self, x: jax.Array, reading: Reading, read: KVCache | None
    ) -> tuple[jax.Array, KVCache]:
        """Return [B, L, D], and keys and values of the states: those given, or made here."""
        spec = self.spec
        query = heads_map(spec, "query")(x)
        if read is None:
            key, value = (heads_map(spec, name)(reading.memory) for name in ("key", "value"))
            read = KVCache(key, value)
        shape = (*reading.memory_mask.shape[:2], x.shape[1], reading.memory_mask.shape[-1])
        mask = jnp.broadcast_to(reading.memory_mask, shape)
        kept = drawn(self, weights_shape(query, read.keys), spec.dropout.attention)
        mixed = look(query, *read, mask, None, spec.attention_impl, spec.score_scale, kept)
        return dropped(self, out_map(spec)(mixed), spec.dropout.attention_out), read


class CrossBlock(nn.Module):
    """Both attentions and an MLP, with norms before each or, where the spec says, behind."""

    spec: BlockSpec

    @nn.compact
    def __call__(
        self, x: jax.Array, reading: Reading, kept: Kept | None, slot: jax.Array | int
    ) -> tuple[jax.Array, Kept | None]:
        """Run the layer on `x` [B, L, D]; without `kept` nothing is kept."""
        spec, norm = self.spec, norms_of(self.spec)
        own_attention, cross = (
            OwnAttention(spec, name="attention"),
            CrossAttention(spec, name="cross"),
        )
        mlp, found = MLP(spec, name="mlp"), []

        def own(x: jax.Array) -> jax.Array:
            out, cache = own_attention(x, reading, None if kept is None else kept.own, slot)
            found.append(cache)
            return out

        def read(x: jax.Array) -> jax.Array:
            out, states = cross(x, reading, None if kept is None else kept.read)
            found.append(states)
            return out

        for name, branch in (("attention", own), ("cross", read), ("mlp", mlp)):
            if spec.norm_places == "residual":
                x = norm(f"{name}_norm", x + branch(x))
            else:
                x = x + branch(norm(f"{name}_norm", x))
        return x, None if kept is None else Kept(*found)


def cross_axes(spec: BlockSpec) -> dict:
    """Return the name of each axis of each parameter of one layer."""
    axes = block_axes(spec)
    return {**axes, "cross": axes["attention"], "cross_norm": norm_axes(spec.norm)}
