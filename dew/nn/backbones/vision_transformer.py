"""The vision transformer: images to one token a patch, or to those of some patches only."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.errors import InputRefused
from dew.nn.block import BlockSpec
from dew.nn.constraint import constrained
from dew.nn.dense import INIT_DEVIATION, Dense
from dew.nn.norms import LayerNorm
from dew.nn.sight import Sight
from dew.nn.stack import block_stack, full_mask


class VisionTransformer(nn.Module):
    """Maps images [B, H, W, C] to tokens [B, N, D], N = (H / P) (W / P) patches row by row.

    There is no class token: average the tokens, or put a head on them.

    Args:
        image_size: H and W in pixels.
        patch_size: P.
        emb_features: D, width of the residual stream.
        num_layers, num_heads, mlp_features: depth, heads and inner width of the MLP.
        channels: C.
        positions: "sincos" (fixed, see `sincos_positions`) or "learned".
        norm_epsilon: added to the variance of the layer norms.
        activation: a Hugging Face activation name.
        dtype: what activations are computed in; `param_dtype` is what parameters are stored in.
        attention_impl: "auto", "xla" or "cudnn".
        remat: recompute each layer in the backward pass instead of keeping its activations.

    Source: Dosovitskiy et al. 2020, arXiv:2010.11929.
    """

    image_size: tuple[int, int]
    patch_size: int
    emb_features: int
    num_layers: int
    num_heads: int
    mlp_features: int
    channels: int = 3
    positions: str = "sincos"
    norm_epsilon: float = 1e-6
    activation: str = "gelu"
    dtype: str = "float32"
    param_dtype: str = "float32"
    attention_impl: str = "auto"
    remat: bool = False

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size

    @nn.compact
    def __call__(
        self, images: jax.Array, keep: jax.Array | None = None, mask: jax.Array | None = None
    ) -> jax.Array:
        """Return the normed tokens of the last layer.

        Args:
            images: [B, H, W, C].
            keep: int32 [B, K], the patches to look at; the others cost nothing. None: all.
            mask: [B, K], nonzero where a kept patch is real; the others are not attended to.

        Returns:
            [B, K, D].
        """
        self._check(images)
        x = Dense(
            (self.emb_features,),
            use_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="patches",
        )(patches(images, self.patch_size))
        x = x + self._places().astype(x.dtype)
        if keep is not None:
            x = jnp.take_along_axis(x, keep[..., None], axis=1)
        x = constrained(x, "batch", "length", None)
        spec = vision_block(self, self.emb_features, self.num_heads, self.mlp_features)
        layers = block_stack(spec, self.num_layers, remat=self.remat)
        x, _ = layers(x, Sight(None, full_mask(x.shape[1], mask, None)), None)
        return LayerNorm(self.norm_epsilon, self.param_dtype, name="final_norm")(x)

    def _places(self) -> jax.Array:
        rows, columns = self.grid
        if self.positions == "sincos":
            return jnp.asarray(sincos_positions(rows, columns, self.emb_features))
        init = nn.initializers.normal(INIT_DEVIATION)
        shape = (rows * columns, self.emb_features)
        return self.param("position_embed", init, shape, self.param_dtype)

    def _check(self, images: jax.Array) -> None:
        wanted = (*self.image_size, self.channels)
        even = not any(size % self.patch_size for size in self.image_size)
        if images.shape[1:] != wanted or not even or self.emb_features % self.num_heads:
            raise InputRefused(
                f"images {images.shape} of patches of {self.patch_size} and {self.emb_features} "
                f"features in {self.num_heads} heads; expected images (batch, "
                f"{', '.join(map(str, wanted))}), sides that the patch divides, and features that "
                "the heads divide"
            )
        if self.positions not in ("sincos", "learned"):
            raise InputRefused(
                f"positions is {self.positions!a:.200}; expected one of sincos, learned"
            )


def vision_block(model, features: int, heads: int, mlp_features: int) -> BlockSpec:
    """Return the layer of a vision transformer: layer norms, plain MLP, biases everywhere.

    Args:
        model: gives dtypes, epsilon, activation and attention.
        features, heads, mlp_features: the widths.
    """
    return BlockSpec(
        emb_features=features,
        num_heads=heads,
        num_kv_heads=heads,
        head_features=features // heads,
        mlp_features=mlp_features,
        norm="layer",
        norm_epsilon=model.norm_epsilon,
        mlp="plain",
        activation=model.activation,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        dtype=model.dtype,
        param_dtype=model.param_dtype,
        attention_impl=model.attention_impl,
        adapter_scale=1.0,
    )


def patches(images: jax.Array, size: int) -> jax.Array:
    """Return the pixels of each patch: [B, H, W, C] to [B, (H / P) (W / P), P P C], row by row."""
    batch, height, width, channels = images.shape
    rows, columns = height // size, width // size
    cut = images.reshape(batch, rows, size, columns, size, channels)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows * columns, size * size * channels)


def sincos_positions(rows: int, columns: int, features: int) -> np.ndarray:
    """Return float32 [rows * columns, D]: sines and cosines of a patch's row, then of its column.

    Each has D / 4 wavelengths, 2 pi times 10000 to the powers 0, 4 / D, 8 / D and so on.

    Raises:
        InputRefused: `features` is not divisible by 4.

    Source: Vaswani et al. 2017, arXiv:1706.03762, in two dimensions as in Assran et al. 2023.
    """
    if features % 4:
        raise InputRefused(f"sincos positions need features divisible by 4; found {features}")
    rates = 10000.0 ** -(np.arange(features // 4) / (features // 4))
    row, column = np.divmod(np.arange(rows * columns), columns)
    turns = [np.outer(place, rates) for place in (row, column)]
    parts = [wave(turn) for turn in turns for wave in (np.sin, np.cos)]
    return np.concatenate(parts, axis=1).astype(np.float32)
