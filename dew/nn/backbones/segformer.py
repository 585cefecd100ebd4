"""Segformer: stages of attention to fewer keys, for labels of images or of their places."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.nn.activations import activation
from dew.nn.backbones.encoder_block import encoder_stack, heads_map, norms_of, out_map
from dew.nn.backbones.image_base import ImageBase, patch_rows
from dew.nn.block import BlockSpec, joined
from dew.nn.convolution import BatchNorm, Convolution
from dew.nn.dense import Dense
from dew.nn.norms import LayerNorm
from dew.nn.softmax_attention import softmax_attention

EPSILON = 1e-5
SIDE = 64


class ShrunkAttention(nn.Module):
    """Attention of all places to squares of places, one key for each."""

    spec: BlockSpec
    square: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `x` [N, H, W, D] to the same shape."""
        spec, shape, seen = self.spec, x.shape, x
        if self.square > 1:
            cut = patch_rows(x.transpose(0, 3, 1, 2), (self.square, self.square))
            seen = _dense(spec, spec.emb_features, "shrink", inputs=3)(cut)
            seen = LayerNorm(EPSILON, spec.param_dtype, name="shrink_norm")(seen)
        flat = [part.reshape(shape[0], -1, shape[-1]) for part in (x, seen)]
        query = heads_map(spec, "query")(flat[0])
        key, value = (heads_map(spec, name)(flat[1]) for name in ("key", "value"))
        mixed = softmax_attention(query, key, value)
        return out_map(spec)(mixed).reshape(shape)


class MixMLP(nn.Module):
    """down(act(depth(up x))), `depth` looking 3 x 3 places around each channel."""

    spec: BlockSpec

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `x` [N, H, W, D] to the same shape."""
        spec = self.spec
        inner = _dense(spec, spec.mlp_features, "up")(x)
        inner = Convolution(
            spec.mlp_features,
            (3, 3),
            depthwise=True,
            use_bias=True,
            dtype=spec.dtype,
            param_dtype=spec.param_dtype,
            name="depth",
        )(inner)
        return _dense(spec, spec.emb_features, "down")(activation(spec.activation)(inner))


class SegformerBlock(nn.Module):
    """A layer: norm, attention, norm and MLP."""

    spec: BlockSpec
    square: int

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        """Run the layer on `x` [N, H, W, D]."""
        attention = ShrunkAttention(self.spec, self.square, name="attention")
        mlp = MixMLP(self.spec, name="mlp")
        return joined(self.spec, norms_of(self.spec), attention, mlp, x), None


class Segformer(ImageBase):
    """Stages whose places overlap where they are cut, each stage's states part of the answer.

    The parameters of a stage's layers are stacked along a first axis and scanned.

    Args:
        image_channels: C.
        features: width of each stage.
        depths: how many layers each has.
        num_heads: of each.
        patch_sizes: side of the squares that a place of the stage is made of.
        strides: from one square to the next.
        squares: side of the squares of places that are one key.
        mlp_ratios: inner width of the MLP in widths of the stage.
        activation: a Hugging Face activation name.
        head_features: width of the head "segmentation".
        remat: recompute each layer in the backward pass instead of keeping its activations.

    Source: Xie et al. 2021, arXiv:2105.15203.
    """

    image_channels: int = 3
    features: tuple[int, ...] = (32, 64, 160, 256)
    depths: tuple[int, ...] = (2, 2, 2, 2)
    num_heads: tuple[int, ...] = (1, 2, 5, 8)
    patch_sizes: tuple[int, ...] = (7, 3, 3, 3)
    strides: tuple[int, ...] = (4, 2, 2, 2)
    squares: tuple[int, ...] = (8, 4, 2, 1)
    mlp_ratios: tuple[float, ...] = (4.0, 4.0, 4.0, 4.0)
    activation: str = "gelu"
    head_features: int = 256
    attention_impl: str = "auto"
    remat: bool = False

    @property
    def channels(self) -> int:
        """C, the channels of an image."""
        return self.image_channels

    @property
    def example_size(self) -> tuple[int, int]:
        """H and W of the images of a short run, large enough for a key in each stage."""
        needed = [
            int(np.prod(self.strides[: stage + 1])) * square
            for stage, square in enumerate(self.squares)
        ]
        side = max(SIDE, *needed)
        return side, side

    @property
    def num_layers(self) -> int:
        """How many layers are stacked, in the deepest stage."""
        return max(self.depths)

    def setup(self) -> None:
        """Declare the scanned layers of each stage."""
        for stage, (depth, square) in enumerate(zip(self.depths, self.squares, strict=True)):
            fields = (self.block_spec(stage), square)
            layers = encoder_stack(SegformerBlock, fields, depth, shared=0, remat=self.remat)
            setattr(self, f"stage{stage}", layers)

    @nn.compact
    def outputs(self, pixel_values: jax.Array) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names.

        Args:
            pixel_values: [N, C, H, W], normalised.

        Returns:
            float32 `logits` [N, labels], or [N, labels, H', W'] for each place of the first stage,
            or `last_hidden_state` [N, D, H', W'].
        """
        x = pixel_values.transpose(0, 2, 3, 1).astype(self.dtype)
        states = []
        for stage in range(len(self.depths)):
            x = self._cut(stage, x)
            x, _ = getattr(self, f"stage{stage}")(x)
            x = LayerNorm(EPSILON, self.param_dtype, name=f"stage{stage}_norm")(x)
            states.append(x)
        if self.head == "segmentation":
            return {"logits": self._segmented(states)}
        if self.head == "image":
            pooled = jnp.mean(x, axis=(1, 2))
            return {"logits": self._map("top", self.labels)(pooled).astype(jnp.float32)}
        return {"last_hidden_state": x.transpose(0, 3, 1, 2)}

    def block_spec(self, stage: int) -> BlockSpec:
        """Return the sizes of a stage's layers."""
        width, heads = self.features[stage], self.num_heads[stage]
        return BlockSpec(
            emb_features=width,
            num_heads=heads,
            num_kv_heads=heads,
            head_features=width // heads,
            mlp_features=int(width * self.mlp_ratios[stage]),
            norm="layer",
            norm_epsilon=EPSILON,
            mlp="plain",
            activation=self.activation,
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            attention_impl=self.attention_impl,
            adapter_scale=1.0,
        )

    def _cut(self, stage: int, x: jax.Array) -> jax.Array:
        size = self.patch_sizes[stage]
        around = (size // 2, size // 2)
        x = Convolution(
            self.features[stage],
            (size, size),
            self.strides[stage],
            (around, around),
            use_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name=f"cut{stage}",
        )(x)
        return LayerNorm(EPSILON, self.param_dtype, name=f"cut{stage}_norm")(x)

    def _segmented(self, states: list[jax.Array]) -> jax.Array:
        """Return float32 logits [N, labels, H, W], H and W being the first stage's."""
        sides = states[0].shape[1:3]
        parts = []
        for stage, x in enumerate(states):
            x = self._map(f"head_stage{stage}", self.head_features)(x)
            for axis, side in enumerate(sides, 1):
                weights = jnp.asarray(blended(x.shape[axis], side), x.dtype)
                x = jnp.moveaxis(jnp.tensordot(weights, x, (1, axis)), 0, axis)
            parts.append(x)
        x = jnp.concatenate(parts[::-1], axis=-1)
        x = self._map("head_joint", self.head_features, bias=False)(x)
        x = nn.relu(BatchNorm(EPSILON, self.param_dtype, name="head_norm")(x))
        logits = self._map("head_labels", self.labels)(x).astype(jnp.float32)
        return logits.transpose(0, 3, 1, 2)

    def _map(self, name: str, features: int, *, bias: bool = True) -> Any:
        return Dense(
            (features,),
            use_bias=bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name=name,
        )


def _dense(spec: BlockSpec, features: int, name: str, *, inputs: int = 1) -> Dense:
    return Dense(
        (features,),
        inputs=inputs,
        use_bias=True,
        dtype=spec.dtype,
        param_dtype=spec.param_dtype,
        name=name,
    )


def blended(inputs: int, outputs: int) -> np.ndarray:
    """Return float32 [outputs, inputs], the weights of a linear interpolation without filtering.

    The places are those of torch's `interpolate(mode="bilinear", align_corners=False)`.
    """
    places = np.clip((np.arange(outputs) + 0.5) * inputs / outputs - 0.5, 0, inputs - 1)
    away = np.abs(places[:, None] - np.arange(inputs)[None])
    return np.maximum(1 - away, 0).astype(np.float32)
