"""One layer of a decoder: attention and an MLP, each after a norm and beside a residual."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from flax import linen as nn

from dew.nn.activations import activation
from dew.nn.attention import Attention, KVCache
from dew.nn.constraint import constrained
from dew.nn.dense import Dense
from dew.nn.norms import NORMS
from dew.nn.recompute import recomputed


@dataclass(frozen=True)
class BlockSpec:
    """The sizes and choices of one layer, named as in `CausalTransformer`."""

    emb_features: int
    num_heads: int
    num_kv_heads: int
    head_features: int
    mlp_features: int
    norm: str
    norm_epsilon: float
    mlp: str
    activation: str
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    dtype: str
    param_dtype: str
    attention_impl: str
    adapter_scale: float


class MLP(nn.Module):
    """down(act(up x)), or down(act(gate x) * up x) where `mlp` is "gated".

    Source: Shazeer 2020, arXiv:2002.05202, for the gated form.
    """

    spec: BlockSpec

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `x` [B, L, D] to [B, L, D]."""
        spec = self.spec
        act = activation(spec.activation)
        up = self._dense(spec.mlp_features, "up")(x)
        if spec.mlp == "gated":
            gate = self._dense(spec.mlp_features, "gate")(x)
            inner = recomputed(lambda gate, up: act(gate) * up)(gate, up)
        else:
            inner = recomputed(act)(up)
        return self._dense(spec.emb_features, "down")(inner)

    def _dense(self, features: int, name: str) -> Dense:
        spec = self.spec
        return Dense(
            (features,),
            use_bias=spec.mlp_bias,
            dtype=spec.dtype,
            param_dtype=spec.param_dtype,
            adapter_scale=spec.adapter_scale,
            name=name,
        )


class Block(nn.Module):
    """x + attention(norm x), then x + mlp(norm x)."""

    spec: BlockSpec

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        turn: tuple[jax.Array, jax.Array] | None,
        mask: jax.Array | None,
        cache: KVCache | None = None,
        slot: jax.Array | int = 0,
    ) -> tuple[jax.Array, KVCache | None]:
        """Run the layer on `x` [B, L, D]; the other arguments are those of `Attention`."""
        spec = self.spec
        norm = NORMS[spec.norm]
        attention = Attention(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_features=spec.head_features,
            out_features=spec.emb_features,
            qkv_bias=spec.qkv_bias,
            out_bias=spec.out_bias,
            dtype=spec.dtype,
            param_dtype=spec.param_dtype,
            attention_impl=spec.attention_impl,
            adapter_scale=spec.adapter_scale,
            name="attention",
        )
        seen = norm(spec.norm_epsilon, spec.param_dtype, name="attention_norm")(x)
        mixed, cache = attention(seen, turn, mask, cache, slot)
        x = constrained(x + mixed, "batch", "length", None)
        seen = norm(spec.norm_epsilon, spec.param_dtype, name="mlp_norm")(x)
        x = constrained(x + MLP(spec, name="mlp")(seen), "batch", "length", None)
        return x, cache
