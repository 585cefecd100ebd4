"""One layer of a text encoder: every token sees every real one, on both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.nn.apart import Apart, layers_apart
from dew.nn.attention import attend, weights_shape
from dew.nn.block import MLP, BlockSpec, joined
from dew.nn.dense import Dense
from dew.nn.dropout import Kept, drawn, dropped
from dew.nn.norms import NORMS
from dew.nn.recompute import recomputed
from dew.nn.rotary import rotate
from dew.nn.sight import Turn
from dew.nn.softmax_attention import softmax_attention


class UnbiasedLayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale over the last axis.

    Source: Ba et al. 2016, arXiv:1607.06450, without its bias.
    """

    epsilon: float
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [..., D]."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.param_dtype)
        return scaled_norm(x, scale, None, self.epsilon)


def scaled_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float
) -> jax.Array:
    """Return `x` [..., D] with mean 0 and variance 1, times `scale` [D] and plus `bias` [D]."""

    def normed(x: jax.Array, scale: jax.Array, bias: jax.Array | None) -> jax.Array:
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, -1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), -1, keepdims=True)
        wide = centred * jax.lax.rsqrt(variance + epsilon) * scale.astype(jnp.float32)
        return (wide if bias is None else wide + bias.astype(jnp.float32)).astype(x.dtype)

    return recomputed(normed)(x, scale, bias)


ENCODER_NORMS: dict[str, Callable[..., Any]] = {**NORMS, "layer_unbiased": UnbiasedLayerNorm}
"""Name to module: those of `NORMS`, and the layer norm without a bias."""


class EncoderAttention(nn.Module):
    """Self-attention to both sides, with an additive bias where one is given."""

    spec: BlockSpec

    @nn.compact
    def __call__(
        self, x: jax.Array, turn: Turn | None, mask: jax.Array, bias: jax.Array | None = None
    ) -> jax.Array:
        """Return [B, L, D].

        Args:
            x: [B, L, D].
            turn: cos and sin of `dew.nn.rotary.angles`, or None.
            mask: bool [B or 1, 1, L, L], True where a query may look.
            bias: [1 or B, H, L, L], added to the scores, or None.
        """
        spec = self.spec
        query, key, value = (heads_map(spec, name)(x) for name in ("query", "key", "value"))
        if turn is not None:
            query, key = rotate(query, *turn), rotate(key, *turn)
        kept = drawn(self, weights_shape(query, key), spec.dropout.attention)
        mixed = look(query, key, value, mask, bias, spec.attention_impl, spec.score_scale, kept)
        return dropped(self, out_map(spec)(mixed), spec.dropout.attention_out)


class EncoderBlock(nn.Module):
    """A layer: attention and an MLP, normed and added as the spec's `norm_places` says."""

    spec: BlockSpec

    @nn.compact
    def __call__(
        self, x: jax.Array, mask: jax.Array, bias: jax.Array | None
    ) -> tuple[jax.Array, None]:
        """Run the layer on `x` [B, L, D]; the rest as for `EncoderAttention`."""
        spec = self.spec
        attention = EncoderAttention(spec, name="attention")
        mlp = MLP(spec, name="mlp")
        x = joined(spec, norms_of(spec), lambda x: attention(x, None, mask, bias), mlp, x)
        return x, None


def encoder_stack(
    block: Any,
    fields: Sequence[Any],
    layers: int,
    *,
    shared: int,
    own: int = 0,
    remat: bool = False,
) -> Any:
    """Return a module that runs `layers` blocks, their parameters stacked along a first axis.

    Args:
        block: the module of one layer; it takes the stream and then the arguments below.
        fields: of that module, its `BlockSpec` first.
        layers: how many.
        shared: how many arguments are the same for all layers.
        own: how many more hold one element for each layer.
        remat: recompute each layer in the backward pass instead of keeping its activations.
    """
    apart = layers_apart()
    if apart is not None:
        return Apart(block, fields, apart, shared=shared)
    axes = (*(nn.broadcast for _ in range(shared)), *(0 for _ in range(own)))
    return nn.scan(
        nn.remat(block, prevent_cse=False) if remat else block,
        variable_axes={"params": 0, "lora": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=axes,  # pyright: ignore[reportArgumentType]
        length=layers,
    )(*fields)


def heads_map(spec: BlockSpec, name: str) -> Dense:
    """Return the map to the heads of queries, keys or values, [..., D] to [..., H, K]."""
    return Dense(
        (spec.num_heads, spec.head_features),
        use_bias=spec.maps_with_bias(name),
        dtype=spec.dtype,
        param_dtype=spec.param_dtype,
        adapter_scale=spec.adapter_scale,
        name=name,
    )


def out_map(spec: BlockSpec) -> Dense:
    """Return the map from the heads, [..., H, K] to [..., D]."""
    return Dense(
        (spec.emb_features,),
        inputs=2,
        use_bias=spec.out_bias,
        dtype=spec.dtype,
        param_dtype=spec.param_dtype,
        adapter_scale=spec.adapter_scale,
        name="out",
    )


def norms_of(spec: BlockSpec) -> Callable[[str, jax.Array], jax.Array]:
    """Return what applies a layer's norm of a name."""

    def normed(name: str, x: jax.Array) -> jax.Array:
        return ENCODER_NORMS[spec.norm](spec.norm_epsilon, spec.param_dtype, name=name)(x)

    return normed


def look(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    bias: jax.Array | None,
    impl: str,
    scale: float | None = None,
    kept: Kept | None = None,
) -> jax.Array:
    """Return softmax(scale q kᵀ + bias) v, [B, L, H, K].

    Args:
        query, key, value: [B, L, H, K].
        mask: bool [B or 1, 1, L, L], True where a query may look.
        bias: [1 or B, H, L, L]; such scores are always computed by XLA. None for none.
        impl: as for `dew.nn.attention.attend`.
        scale: None for 1 / √K.
        kept: which weights stay, or None for all.
    """
    if bias is None:
        return attend(query, key, value, mask, impl, scale=scale, kept=kept)

    return softmax_attention(query, key, value, mask, bias, scale=scale, kept=kept)


def block_axes(spec: BlockSpec) -> dict[str, Any]:
    """Return the name of each axis of each parameter of one layer."""
    names = ("gate", "up") if spec.mlp == "gated" else ("up",)
    return {
        "attention": {
            **{
                name: linear_axes(("embed",), ("heads", "head"), spec.maps_with_bias(name))
                for name in ("query", "key", "value")
            },
            "out": linear_axes(("heads", "head"), ("embed",), spec.out_bias),
        },
        "mlp": {
            **{name: linear_axes(("embed",), ("mlp",), spec.mlp_bias) for name in names},
            "down": linear_axes(("mlp",), ("embed",), spec.mlp_bias),
        },
        **{name: norm_axes(spec.norm) for name in spec.norm_names},
    }


def block_sizes(spec: BlockSpec, layers: int) -> dict[str, int]:
    """Return the length of each axis that `block_axes` names, and of the stacked one."""
    return {
        "embed": spec.emb_features,
        "norm": spec.emb_features,
        "heads": spec.num_heads,
        "head": spec.head_features,
        "mlp": spec.mlp_features,
        "layers": layers,
    }


def linear_axes(inputs: tuple[str, ...], outputs: tuple[str, ...], bias: bool) -> dict[str, Any]:
    """Return the axes of a `Dense`."""
    return {"kernel": (*inputs, *outputs), **({"bias": outputs} if bias else {})}


def norm_axes(kind: str, axis: str = "norm") -> dict[str, Any]:
    """Return the axes of a norm, a name of `ENCODER_NORMS`."""
    return {"scale": (axis,), **({"bias": (axis,)} if kind == "layer" else {})}


def each_leaf(tree: dict[str, Any], change: Callable[[tuple[str, ...]], Any]) -> dict[str, Any]:
    """Return a nested dict of axes with each leaf changed."""
    return {
        name: each_leaf(value, change) if isinstance(value, dict) else change(value)
        for name, value in tree.items()
    }
