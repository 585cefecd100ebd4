"""The image encoder: ViT, DINOv2 and the image towers of CLIP and SigLIP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.nn.activations import activation
from dew.nn.backbones.encoder_block import (
    EncoderAttention,
    block_axes,
    block_sizes,
    each_leaf,
    encoder_stack,
    heads_map,
    linear_axes,
    norm_axes,
    norms_of,
    out_map,
)
from dew.nn.backbones.image_base import ImageBase, patch_rows, random_rows, wrong_size
from dew.nn.block import MLP, BlockSpec, joined
from dew.nn.constraint import constrained
from dew.nn.dense import Dense
from dew.nn.norms import LayerNorm
from dew.nn.softmax_attention import softmax_attention
from dew.nn.stack import full_mask

SHARPNESS = -0.75


@dataclass(frozen=True)
class ImageSpec:
    """The sizes and choices of an image encoder.

    Args:
        image_size: H and W in pixels.
        patch_size: P and Q, height and width of a patch in pixels.
        emb_features: D, width of the residual stream.
        num_layers, num_heads, mlp_features: depth, heads and inner width of the MLP.
        channels: C.
        norm_epsilon: added to the variance of the layer norms.
        activation: a Hugging Face activation name.
        mlp: "plain" or "gated".
        qkv_bias: whether queries, keys and values have a bias.
        patch_bias: whether the patches' map has one.
        class_token: whether a learned token stands before the patches.
        mask_token: whether there is a token for hidden patches; no output depends on it.
        layer_scale: whether each branch is multiplied by a learned vector before it is added.
        first_norm: whether the layers' input is normed.
        final_norm: "tokens" norms the last layer's states, "class" the pooled token alone.
        resized: whether other image sizes are read, by interpolating the learned positions.
        pooled: what `pooler_output` is: "dense" (a map of the first token's state), "class" (that
            state), "attention" (a learned query's view of all tokens) or "" for none.
        pooled_features: width of the "dense" map's output.
        pooled_activation: behind that map.
        classified: what labels are read off: "class", "class_mean" (the first token beside the
            mean of the patches), "patches" (their mean) or "tokens" (the mean of all).
    """

    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    emb_features: int
    num_layers: int
    num_heads: int
    mlp_features: int
    channels: int = 3
    norm_epsilon: float = 1e-12
    activation: str = "gelu"
    mlp: str = "plain"
    qkv_bias: bool = True
    patch_bias: bool = True
    class_token: bool = True
    mask_token: bool = False
    layer_scale: bool = False
    first_norm: bool = False
    final_norm: str = "tokens"
    resized: bool = False
    pooled: str = "dense"
    pooled_features: int = 0
    pooled_activation: str = "tanh"
    classified: str = "class"

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def places(self) -> int:
        """How many tokens have a learned position."""
        return self.grid[0] * self.grid[1] + self.class_token


VIT_BASE = ImageSpec((224, 224), (16, 16), 768, 12, 12, 3072)
"""The sizes of ViT-B/16."""


class ImageBlock(nn.Module):
    """A layer: norm, attention, norm and MLP, each branch scaled where `scaled`."""

    spec: BlockSpec
    scaled: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, None]:
        """Run the layer on `x` [N, L, D]; `mask` is bool [1, 1, L, L]."""
        spec = self.spec
        attention = EncoderAttention(spec, name="attention")
        mlp = MLP(spec, name="mlp")

        def look(x: jax.Array) -> jax.Array:
            return self._scale("attention_scale", attention(x, None, mask))

        def think(x: jax.Array) -> jax.Array:
            return self._scale("mlp_scale", mlp(x))

        return joined(spec, norms_of(spec), look, think, x), None

    def _scale(self, name: str, x: jax.Array) -> jax.Array:
        if not self.scaled:
            return x
        scale = self.param(name, nn.initializers.ones, (x.shape[-1],), self.spec.param_dtype)
        return x * scale.astype(x.dtype)


class AttentionPool(nn.Module):
    """A learned query's view of all tokens, then a normed MLP beside it.

    Source: Zhai et al. 2022, arXiv:2106.04560.
    """

    spec: BlockSpec

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return [N, D] of tokens [N, L, D]."""
        spec = self.spec
        probe = self.param("probe", random_rows(), (spec.emb_features,), spec.param_dtype)
        query = heads_map(spec, "query")(probe.astype(tokens.dtype)[None, None])
        query = jnp.broadcast_to(query, (len(tokens), *query.shape[1:]))
        key, value = (heads_map(spec, name)(tokens) for name in ("key", "value"))
        mixed = softmax_attention(query, key, value)
        x = out_map(spec)(mixed)[:, 0]
        normed = LayerNorm(spec.norm_epsilon, spec.param_dtype, name="norm")(x)
        return x + MLP(spec, name="mlp")(normed)


class ImageEncoder(ImageBase):
    """Maps images [N, C, H, W] to tokens [N, L, D]: the patches row by row behind a class token.

    The layers' parameters are stacked along a first axis and scanned.

    Args:
        spec: the sizes and choices.
        pooler: without a head, whether `pooler_output` is given.
        projected: width of `image_embeds`, a map of it where the head is "projection".
        attention_impl: "auto", "xla" or "cudnn".
        remat: recompute each layer in the backward pass instead of keeping its activations.

    Source: Dosovitskiy et al. 2020, arXiv:2010.11929; Oquab et al. 2023, arXiv:2304.07193;
    Radford et al. 2021, arXiv:2103.00020; Zhai et al. 2023, arXiv:2303.15343.
    """

    spec: ImageSpec = VIT_BASE
    pooler: bool = True
    projected: int = 0
    attention_impl: str = "auto"
    remat: bool = False

    @property
    def channels(self) -> int:
        """C, the channels of an image."""
        return self.spec.channels

    @property
    def num_layers(self) -> int:
        """How many layers are stacked."""
        return self.spec.num_layers

    @property
    def example_size(self) -> tuple[int, int]:
        """H and W of the images of a short run."""
        return self.spec.image_size

    @property
    def pools(self) -> bool:
        """Whether the map of the pooler is there."""
        needed = self.pooler and self.head != "image"
        return self.spec.pooled == "attention" or (self.spec.pooled == "dense" and needed)

    @property
    def block_spec(self) -> BlockSpec:
        """The sizes of one layer."""
        spec = self.spec
        return BlockSpec(
            emb_features=spec.emb_features,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_heads,
            head_features=spec.emb_features // spec.num_heads,
            mlp_features=spec.mlp_features,
            norm="layer",
            norm_epsilon=spec.norm_epsilon,
            mlp=spec.mlp,
            activation=spec.activation,
            qkv_bias=spec.qkv_bias,
            out_bias=True,
            mlp_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            attention_impl=self.attention_impl,
            adapter_scale=1.0,
        )

    def setup(self) -> None:
        """Declare the tokens, the scanned layers and what stands on them."""
        spec, width = self.spec, self.spec.emb_features
        self.patches = self._dense(width, inputs=3, bias=spec.patch_bias)
        shape = (spec.places, width)
        self.position_embed = self.param("position_embed", random_rows(), shape, self.param_dtype)
        for name in ("class", "mask"):
            if getattr(spec, f"{name}_token"):
                drawn = self.param(f"{name}_embed", random_rows(), (width,), self.param_dtype)
                setattr(self, f"{name}_embed", drawn)
        if spec.first_norm:
            self.first_norm = LayerNorm(spec.norm_epsilon, self.param_dtype)
        self.layers = encoder_stack(
            ImageBlock,
            (self.block_spec, spec.layer_scale),
            spec.num_layers,
            shared=1,
            remat=self.remat,
        )
        self.final_norm = LayerNorm(spec.norm_epsilon, self.param_dtype)
        if self.pools:
            attends = spec.pooled == "attention"
            pool: Any = AttentionPool(self.block_spec) if attends else None
            self.pool = pool or self._dense(spec.pooled_features)
        if self.head == "projection":
            self.projection = self._dense(self.projected, bias=False)
        if self.head == "image":
            self.top = self.classifier()

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the states of the last layer.

        Args:
            images: [N, C, H, W].

        Returns:
            [N, L, D].

        Raises:
            InputRefused: a size that the model does not read.
        """
        spec = self.spec
        pixels = patch_rows(images.astype(self.dtype), spec.patch_size)
        rows, columns = pixels.shape[1:3]
        fits = tuple(images.shape[2:]) == spec.image_size
        if not (fits or (spec.resized and rows and columns)):
            raise wrong_size(images.shape, spec.image_size)
        x = self.patches(pixels.reshape(len(images), rows * columns, *pixels.shape[3:]))
        if spec.class_token:
            first = self.class_embed.astype(x.dtype)
            first = jnp.broadcast_to(first, (len(x), 1, spec.emb_features))
            x = jnp.concatenate([first, x], axis=1)
        x = x + self._positions(rows, columns).astype(x.dtype)
        x = self.first_norm(x) if spec.first_norm else x
        x = constrained(x, "batch", "length", None)
        x, _ = self.layers(x, full_mask(x.shape[1], None, None))
        return self.final_norm(x) if spec.final_norm == "tokens" else x

    def outputs(self, pixel_values: jax.Array) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names.

        Args:
            pixel_values: [N, C, H, W], normalised.

        Returns:
            float32 `logits` [N, labels], or `last_hidden_state` [N, L, D] and `pooler_output`;
            `image_embeds` in its place where the head is "projection".
        """
        hidden = self(pixel_values)
        # An unused pooler is computed by nobody; its parameters are in the tree all the same.
        pooled = self.pooled(hidden)
        if self.head == "image":
            return {"logits": self.top(self._classified(hidden)).astype(jnp.float32)}
        found = {"last_hidden_state": hidden}
        if self.head == "projection":
            return {**found, "image_embeds": self.projection(pooled)}
        if self.pooler and self.spec.pooled:
            found["pooler_output"] = pooled
        return found

    def pooled(self, hidden: jax.Array) -> jax.Array:
        """Return one vector for each image, of the last layer's states [N, L, D]."""
        spec = self.spec
        if spec.pooled == "attention":
            return self.pool(hidden)
        first = hidden[:, 0]
        if spec.final_norm == "class":
            first = self.final_norm(first)
        if spec.pooled == "dense" and self.pools:
            return activation(spec.pooled_activation)(self.pool(first))
        return first

    def parameter_axes(self) -> dict[str, Any]:
        """Return the name of each axis of each parameter: what a layout's rules speak of."""
        spec = self.spec
        layer = block_axes(self.block_spec)
        if spec.layer_scale:
            layer |= {"attention_scale": ("norm",), "mlp_scale": ("norm",)}
        pixels = ("channels", "patch_rows", "patch_columns")
        axes: dict[str, Any] = {
            "patches": linear_axes(pixels, ("embed",), spec.patch_bias),
            "position_embed": ("positions", "embed"),
            "layers": each_leaf(layer, lambda names: ("layers", *names)),
            "final_norm": norm_axes("layer"),
        }
        axes |= {
            f"{name}_embed": ("embed",)
            for name in ("class", "mask")
            if getattr(spec, f"{name}_token")
        }
        if spec.first_norm:
            axes["first_norm"] = norm_axes("layer")
        if self.pools and spec.pooled == "attention":
            parts = block_axes(self.block_spec)
            names = ("query", "key", "value", "out")
            axes["pool"] = {"probe": ("embed",), "norm": norm_axes("layer"), "mlp": parts["mlp"]}
            axes["pool"] |= {name: parts["attention"][name] for name in names}
        elif self.pools:
            axes["pool"] = linear_axes(("embed",), ("pooled",), True)
        if self.head == "projection":
            axes["projection"] = linear_axes(("embed",), ("projected",), False)
        if self.head == "image":
            axes["top"] = linear_axes(("classified",), ("labels",), True)
        return axes

    def axis_sizes(self) -> dict[str, int]:
        """Return the length of each axis of a parameter."""
        spec = self.spec
        return {
            **block_sizes(self.block_spec, spec.num_layers),
            "channels": spec.channels,
            "patch_rows": spec.patch_size[0],
            "patch_columns": spec.patch_size[1],
            "positions": spec.places,
            "pooled": spec.pooled_features,
            "projected": self.projected,
            "classified": spec.emb_features * (1 + (spec.classified == "class_mean")),
            "labels": self.labels,
        }

    def parameter_shapes(self) -> dict[str, Any]:
        """Return the shapes of `init`'s parameters, without tracing it."""
        sizes = self.axis_sizes()

        def shape(axes: tuple[str, ...]) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(tuple(sizes[axis] for axis in axes), self.param_dtype)

        return each_leaf(self.parameter_axes(), shape)

    def _classified(self, hidden: jax.Array) -> jax.Array:
        kind = self.spec.classified
        if kind == "tokens":
            return jnp.mean(hidden, axis=1)
        mean = jnp.mean(hidden[:, 1:], axis=1)
        if kind == "class_mean":
            return jnp.concatenate([hidden[:, 0], mean], axis=-1)
        return hidden[:, 0] if kind == "class" else mean

    def _positions(self, rows: int, columns: int) -> jax.Array:
        """Return the positions of a grid of patches, [L, D], behind that of the class token."""
        spec, table = self.spec, self.position_embed
        if (rows, columns) == spec.grid:
            return table
        head, body = table[: spec.class_token], table[spec.class_token :]
        body = body.astype(jnp.float32).reshape(*spec.grid, -1)
        body = jnp.einsum("rg,gkd->rkd", stretched(spec.grid[0], rows), body)
        body = jnp.einsum("ck,rkd->rcd", stretched(spec.grid[1], columns), body)
        body = body.reshape(rows * columns, -1).astype(table.dtype)
        return jnp.concatenate([head, body])

    def _dense(self, features: int, *, inputs: int = 1, bias: bool = True) -> Dense:
        return Dense(
            (features,),
            inputs=inputs,
            use_bias=bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )


def stretched(inputs: int, outputs: int) -> np.ndarray:
    """Return float32 [outputs, inputs], the weights of a cubic interpolation without filtering.

    Samples beyond the ends are the last ones. Source: Keys 1981 with a = -0.75, at the places of
    torch's `interpolate(mode="bicubic", align_corners=False)`.
    """
    places = (np.arange(outputs) + 0.5) * inputs / outputs - 0.5
    first = np.floor(places).astype(int)
    weights = np.zeros((outputs, inputs))
    for offset in range(-1, 3):
        away = np.abs(places - first - offset)
        near = ((SHARPNESS + 2) * away - (SHARPNESS + 3)) * away * away + 1
        far = SHARPNESS * (((away - 5) * away + 8) * away - 4)
        which = np.clip(first + offset, 0, inputs - 1)
        np.add.at(weights, (np.arange(outputs), which), np.where(away <= 1, near, far))
    return weights.astype(np.float32)
