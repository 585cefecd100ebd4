"""Swin: attention within windows, which every other layer shifts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.errors import InputRefused
from dew.nn.backbones.encoder_block import encoder_stack, heads_map, norms_of, out_map
from dew.nn.backbones.image_base import ImageBase, patch_rows, random_rows, wrong_size
from dew.nn.block import MLP, BlockSpec, joined
from dew.nn.dense import Dense
from dew.nn.norms import LayerNorm

MASKED = -100.0
PLAIN_EPSILON = 1e-5
REGIONS = 3


class WindowAttention(nn.Module):
    """Attention within windows of W x W places, with a learned bias for each way between two."""

    spec: BlockSpec
    window: int

    @nn.compact
    def __call__(self, x: jax.Array, added: jax.Array, shift: jax.Array) -> jax.Array:
        """Return [N, H, W, D].

        Args:
            x: [N, H, W, D].
            added: [windows, W W, W W], added to the scores.
            shift: int32 [], by how many places the windows lie further down and right.
        """
        spec, window = self.spec, self.window
        batch, height, width, features = x.shape
        bottom, right = -height % window, -width % window
        x = jnp.pad(x, ((0, 0), (0, bottom), (0, right), (0, 0)))
        x = _shifted(x, -shift)
        rows, columns = x.shape[1] // window, x.shape[2] // window
        x = x.reshape(batch, rows, window, columns, window, features)
        x = x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows * columns, window**2, features)
        query, key, value = (heads_map(spec, name)(x) for name in ("query", "key", "value"))
        scores = jnp.einsum("nwqhk,nwshk->nwhqs", query, key, preferred_element_type=jnp.float32)
        scores = scores * spec.head_features**-0.5 + self._bias() + added[:, None]
        shares = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
        x = out_map(spec)(jnp.einsum("nwhqs,nwshk->nwqhk", shares, value))
        x = x.reshape(batch, rows, columns, window, window, features).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, rows * window, columns * window, features)
        return _shifted(x, shift)[:, :height, :width]

    def _bias(self) -> jax.Array:
        """Return float32 [H, W W, W W]."""
        ways = (2 * self.window - 1) ** 2
        shape = (ways, self.spec.num_heads)
        table = self.param("bias_table", random_rows(), shape, self.spec.param_dtype)
        return jnp.moveaxis(table.astype(jnp.float32)[way_rows(self.window)], -1, 0)


class SwinBlock(nn.Module):
    """A layer: norm, attention within windows, norm and MLP."""

    spec: BlockSpec
    window: int

    @nn.compact
    def __call__(
        self, x: jax.Array, masks: jax.Array, shifts: jax.Array, kind: jax.Array
    ) -> tuple[jax.Array, None]:
        """Run the layer on `x` [N, H, W, D]; `kind` says which of masks and shifts is its own."""
        attention = WindowAttention(self.spec, self.window, name="attention")
        mlp = MLP(self.spec, name="mlp")

        def look(x: jax.Array) -> jax.Array:
            return attention(x, masks[kind], shifts[kind])

        return joined(self.spec, norms_of(self.spec), look, mlp, x), None


class Swin(ImageBase):
    """Stages of layers, four places becoming one between them.

    The parameters of a stage's layers are stacked along a first axis and scanned.

    Args:
        image_size: H and W in pixels; other sizes are read where no position is learned.
        patch_size: height and width of a patch in pixels.
        image_channels: C.
        emb_features: D, width of the first stage; each further one is twice as wide.
        depths: how many layers each stage has.
        num_heads: of each stage.
        window: side of a window in places.
        mlp_ratio: inner width of the MLP in widths of the stage.
        norm_epsilon: of the layers' norms and the last one.
        activation: a Hugging Face activation name.
        qkv_bias: whether queries, keys and values have a bias.
        placed: whether each patch has a learned position.

    Source: Liu et al. 2021, arXiv:2103.14030.
    """

    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (4, 4)
    image_channels: int = 3
    emb_features: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    num_heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7
    mlp_ratio: float = 4.0
    norm_epsilon: float = 1e-5
    activation: str = "gelu"
    qkv_bias: bool = True
    placed: bool = False
    attention_impl: str = "auto"
    remat: bool = False

    @property
    def channels(self) -> int:
        """C, the channels of an image."""
        return self.image_channels

    @property
    def example_size(self) -> tuple[int, int]:
        """H and W of the images of a short run."""
        return self.image_size

    @property
    def num_layers(self) -> int:
        """How many layers are stacked, in the deepest stage."""
        return max(self.depths)

    def setup(self) -> None:
        """Declare the scanned layers of each stage."""
        for stage, depth in enumerate(self.depths):
            fields = (self.block_spec(stage), self.window)
            layers = encoder_stack(SwinBlock, fields, depth, shared=2, own=1, remat=self.remat)
            setattr(self, f"stage{stage}", layers)

    @nn.compact
    def outputs(self, pixel_values: jax.Array) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names.

        Args:
            pixel_values: [N, C, H, W], normalised.

        Returns:
            float32 `logits` [N, labels], or `last_hidden_state` [N, L, D] and `pooler_output`.

        Raises:
            InputRefused: an image too small for a window, or of another size than the positions.
        """
        x = self._patches(pixel_values)
        for stage, depth in enumerate(self.depths):
            x = self._stage(stage, depth, x)
            if stage < len(self.depths) - 1:
                x = self._merged(stage, x)
        x = LayerNorm(self.norm_epsilon, self.param_dtype, name="final_norm")(x)
        states = x.reshape(len(x), -1, x.shape[-1])
        pooled = jnp.mean(states, axis=1)
        if self.head == "image":
            return {"logits": self._dense("top", self.labels)(pooled).astype(jnp.float32)}
        return {"last_hidden_state": states, "pooler_output": pooled}

    def block_spec(self, stage: int) -> BlockSpec:
        """Return the sizes of a stage's layers."""
        width, heads = self.emb_features * 2**stage, self.num_heads[stage]
        return BlockSpec(
            emb_features=width,
            num_heads=heads,
            num_kv_heads=heads,
            head_features=width // heads,
            mlp_features=int(self.mlp_ratio * width),
            norm="layer",
            norm_epsilon=self.norm_epsilon,
            mlp="plain",
            activation=self.activation,
            qkv_bias=self.qkv_bias,
            out_bias=True,
            mlp_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            attention_impl=self.attention_impl,
            adapter_scale=1.0,
        )

    def _patches(self, images: jax.Array) -> jax.Array:
        bottom, right = (
            -side % patch for side, patch in zip(images.shape[2:], self.patch_size, strict=True)
        )
        images = jnp.pad(images.astype(self.dtype), ((0, 0), (0, 0), (0, bottom), (0, right)))
        pixels = patch_rows(images, self.patch_size)
        x = self._dense("patches", self.emb_features, inputs=3)(pixels)
        x = LayerNorm(PLAIN_EPSILON, self.param_dtype, name="patch_norm")(x)
        if not self.placed:
            return x
        pairs = zip(self.image_size, self.patch_size, strict=True)
        grid = tuple(side // patch for side, patch in pairs)
        if x.shape[1:3] != grid:
            raise wrong_size(images.shape, self.image_size)
        shape = (grid[0] * grid[1], self.emb_features)
        places = self.param("position_embed", random_rows(), shape, self.param_dtype)
        return x + places.astype(x.dtype).reshape(*grid, -1)

    def _stage(self, stage: int, depth: int, x: jax.Array) -> jax.Array:
        height, width = x.shape[1:3]
        if min(height, width) < self.window:
            raise InputRefused(
                f"pixel_values give stage {stage + 1} {height} x {width} places, fewer than the "
                f"{self.window} of a window's side: give larger images"
            )
        # A single window is not shifted.
        shift = 0 if min(height, width) == self.window else self.window // 2
        shifts = jnp.asarray([0, shift], jnp.int32)
        masks = jnp.stack([window_masks(height, width, self.window, by) for by in (0, shift)])
        kinds = jnp.arange(depth) % 2
        x, _ = getattr(self, f"stage{stage}")(x, masks, shifts, kinds)
        return x

    def _merged(self, stage: int, x: jax.Array) -> jax.Array:
        """Return half as many rows and columns, twice as wide."""
        width = x.shape[-1]
        x = jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, x.shape[2] % 2), (0, 0)))
        corners = [x[:, row::2, column::2] for column in range(2) for row in range(2)]
        x = jnp.concatenate(corners, axis=-1)
        x = LayerNorm(PLAIN_EPSILON, self.param_dtype, name=f"merge{stage}_norm")(x)
        return self._dense(f"merge{stage}", 2 * width, bias=False)(x)

    def _dense(self, name: str, features: int, *, inputs: int = 1, bias: bool = True) -> Any:
        return Dense(
            (features,),
            inputs=inputs,
            use_bias=bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name=name,
        )


def _shifted(x: jax.Array, by: jax.Array) -> jax.Array:
    return jnp.roll(jnp.roll(x, by, axis=1), by, axis=2)


def way_rows(window: int) -> np.ndarray:
    """Return int32 [W W, W W], the table's row for a query (first axis) and a key."""
    row, column = np.divmod(np.arange(window**2), window)
    down, right = (part[:, None] - part[None] + window - 1 for part in (row, column))
    return (down * (2 * window - 1) + right).astype(np.int32)


def window_masks(height: int, width: int, window: int, shift: int) -> np.ndarray:
    """Return float32 [windows, W W, W W]: -100 between places that shifting brought together.

    Args:
        height, width: in places; they are filled up to whole windows.
        window: W.
        shift: by how many places windows are shifted.
    """
    regions = []
    for side in (height, width):
        whole = side + -side % window
        place = np.arange(whole)
        far = (place >= whole - window).astype(int) + (place >= whole - shift).astype(int)
        regions.append(far if shift else np.zeros(whole, int))
    both = regions[0][:, None] * REGIONS + regions[1][None]
    rows, columns = both.shape[0] // window, both.shape[1] // window
    both = both.reshape(rows, window, columns, window).transpose(0, 2, 1, 3)
    both = both.reshape(rows * columns, window**2)
    return np.where(both[:, :, None] == both[:, None], 0.0, MASKED).astype(np.float32)
