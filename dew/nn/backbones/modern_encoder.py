"""ModernBERT's encoder: norms before each branch, rotary positions, windows in most layers."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.nn.backbones.causal_transformer import Table
from dew.nn.backbones.encoder_base import EncoderBase
from dew.nn.backbones.encoder_block import (
    ENCODER_NORMS,
    EncoderAttention,
    block_axes,
    each_leaf,
    encoder_stack,
    norm_axes,
    norms_of,
    scaled_norm,
)
from dew.nn.block import MLP, BlockSpec, joined
from dew.nn.constraint import constrained
from dew.nn.dropout import dropped
from dew.nn.rotary import Rope, angles
from dew.nn.sight import Sight
from dew.nn.stack import full_mask


class LayerNumbers(NamedTuple):
    """What the layers have each for itself: arrays with a first axis of layers.

    Attributes:
        first: bool [layers], whether it is the first, which norms nothing before attention.
        scale: [layers, D] of the norm before attention; `bias` of the same shape, or None.
        kind: int32 [layers], see `Sight`; None where all layers are alike.
    """

    first: jax.Array
    scale: jax.Array
    bias: jax.Array | None
    kind: jax.Array | None


class AttentionNorms(nn.Module):
    """The norms before attention of all layers but the first, a leaf each."""

    spec: BlockSpec
    layers: int

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array | None]:
        """Return scales [layers, D] and biases, None without; the first layer's change nothing."""
        shape, dtype = (self.spec.emb_features,), self.spec.param_dtype
        scales, biases = [jnp.ones(shape, dtype)], [jnp.zeros(shape, dtype)]
        for layer in range(1, self.layers):
            scales.append(self.param(f"scale_{layer}", nn.initializers.ones, shape, dtype))
            if self.spec.norm == "layer":
                biases.append(self.param(f"bias_{layer}", nn.initializers.zeros, shape, dtype))
        return jnp.stack(scales), jnp.stack(biases) if self.spec.norm == "layer" else None


class ModernBlock(nn.Module):
    """A layer of ModernBERT."""

    spec: BlockSpec

    @nn.compact
    def __call__(self, x: jax.Array, sight: Sight, own: LayerNumbers) -> tuple[jax.Array, None]:
        """Run the layer on `x` [B, L, D]; `own` holds this layer's elements."""
        spec = self.spec
        turn, mask = sight.layer(own.kind)
        attention = EncoderAttention(spec, name="attention")
        other = norms_of(spec)

        def normed(name: str, x: jax.Array) -> jax.Array:
            if name != "attention_norm":
                return other(name, x)
            return jnp.where(own.first, x, scaled_norm(x, own.scale, own.bias, spec.norm_epsilon))

        def mixed(x: jax.Array) -> jax.Array:
            assert mask is not None  # the encoder always gives one
            return attention(x, turn, mask)

        return joined(spec, normed, mixed, MLP(spec, name="mlp"), x), None


class ModernEncoder(EncoderBase):
    """ModernBERT, Warner et al. 2024, arXiv:2412.13663.

    Args:
        window: how far a windowed layer looks to each side, in tokens.
        windowed: which layers have that window.
        rope: how the others turn positions; `local_rope` how the windowed ones do.
        norm: "layer" or "layer_unbiased".
        attention_bias, mlp_bias: which linear maps carry a bias.
    """

    input_names: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "position_ids")

    window: int = 64
    windowed: tuple[bool, ...] = ()
    rope: Rope = Rope(theta=160000.0)
    local_rope: Rope = Rope()
    norm: str = "layer_unbiased"
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def block_spec(self) -> BlockSpec:
        """The sizes of one layer."""
        return BlockSpec(
            emb_features=self.emb_features,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_features=self.emb_features // self.num_heads,
            mlp_features=self.mlp_features,
            norm=self.norm,
            norm_epsilon=self.norm_epsilon,
            mlp="gated",
            activation=self.activation,
            qkv_bias=self.attention_bias,
            out_bias=self.attention_bias,
            mlp_bias=self.mlp_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            attention_impl=self.attention_impl,
            adapter_scale=self.adapter_scale,
            dropout=self.dropout,
        )

    def setup(self) -> None:
        """Declare the table, the scanned layers and what stands on them."""
        self.check()
        norm, spec = ENCODER_NORMS[self.norm], self.block_spec
        self.embed = Table(self.vocab_size, self.emb_features, self.param_dtype)
        self.embed_norm = norm(self.norm_epsilon, self.param_dtype)
        self.attention_norms = AttentionNorms(spec, self.num_layers)
        self.layers = encoder_stack(
            ModernBlock, (spec,), self.num_layers, shared=1, own=1, remat=self.remat
        )
        self.final_norm = norm(self.norm_epsilon, self.param_dtype)
        self.pool = self.pooler_module()
        self.top = self.head_module()

    def __call__(
        self,
        tokens: jax.Array,
        *,
        mask: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Return the normed states of the last layer.

        Args:
            tokens: int32 [B, L], ids in [0, V).
            mask: [B, L], nonzero where a token is real; all are where None.
            positions: int32 [B, L], what rotary angles are made of; windows count places. From 0
                on where None.

        Returns:
            [B, L, D].
        """
        if positions is None:
            positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        x = jnp.take(self.embed(), tokens, axis=0, mode="clip").astype(self.dtype)
        x = dropped(self, self.embed_norm(x), self.dropout.embedding)
        x = constrained(x, "batch", "length", None)
        sight = self.sight(positions, full_mask(tokens.shape[1], mask, None))
        first = jnp.arange(self.num_layers) == 0
        x, _ = self.layers(
            x, sight._replace(kind=None), LayerNumbers(first, *self.attention_norms(), sight.kind)
        )
        return self.final_norm(x)

    def outputs(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        position_ids: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Return what `finished` gives: a call by Hugging Face's names."""
        hidden = self(input_ids, mask=attention_mask, positions=position_ids)
        return self.finished(hidden, attention_mask, self.embed(), self.top, self.pool)

    def sight(self, positions: jax.Array, mask: jax.Array) -> Sight:
        """Return what the layers need to know of places.

        Args:
            positions: int32 [B or 1, L].
            mask: bool [B or 1, 1, L, L], the places that a layer without a window may look at.
        """
        length, width = positions.shape[1], self.emb_features // self.num_heads
        windowed = self.windowed or (False,) * self.num_layers
        kinds = tuple(dict.fromkeys(windowed))
        away = jnp.abs(jnp.arange(length)[:, None] - jnp.arange(length)[None])
        close = mask & (away <= self.window) if self.window < length - 1 else mask
        turns = {
            near: angles(
                self.local_rope if near else self.rope,
                positions,
                features=width,
                max_seq_len=self.max_seq_len,
            )
            for near in kinds
        }
        return Sight.of(
            [turns[near] for near in kinds],
            [close if near else mask for near in kinds],
            [kinds.index(near) for near in windowed],
            length,
        )

    def parameter_axes(self) -> dict[str, Any]:
        """Return the name of each axis of each parameter: what a layout's rules speak of."""
        layer = block_axes(self.block_spec)
        del layer["attention_norm"]
        leaves = ("scale", "bias") if self.norm == "layer" else ("scale",)
        names = [f"{leaf}_{number}" for number in range(1, self.num_layers) for leaf in leaves]
        axes = {
            "embed": {"table": ("vocab", "table_features")},
            "embed_norm": norm_axes(self.norm),
            "attention_norms": {name: ("norm",) for name in names},
            "layers": each_leaf(layer, lambda names: ("layers", *names)),
            "final_norm": norm_axes(self.norm),
        }
        if not names:
            del axes["attention_norms"]
        return axes | self.finishing_axes()
