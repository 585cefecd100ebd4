"""CLIP: images and captions to vectors of one space, compared by their angle."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from numpy.typing import NDArray

from dew.errors import InputRefused
from dew.nn.bicubic import resize_bicubic
from dew.nn.block import BlockSpec
from dew.nn.dense import Dense
from dew.nn.image_batches import in_chunks
from dew.nn.norms import LayerNorm
from dew.nn.sight import Sight
from dew.nn.stack import block_stack
from dew.typing import TextProcessor

LONGEST_SIDE = 50_000
BUCKET = 16
OVERLONG = ("end_token", "cut")


@dataclass(frozen=True)
class TowerSpec:
    """The sizes of one transformer, named as in `CausalTransformer`."""

    emb_features: int
    num_layers: int
    num_heads: int
    mlp_features: int
    activation: str = "quick_gelu"
    norm_epsilon: float = 1e-5

    def layers(self) -> Any:
        """Return the scanned layers, to be made inside a module."""
        spec = BlockSpec(
            emb_features=self.emb_features,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_features=self.emb_features // self.num_heads,
            mlp_features=self.mlp_features,
            norm="layer",
            norm_epsilon=self.norm_epsilon,
            mlp="plain",
            activation=self.activation,
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            dtype="float32",
            param_dtype="float32",
            attention_impl="auto",
            adapter_scale=1.0,
        )
        return block_stack(spec, self.num_layers)


@dataclass(frozen=True)
class ClipSpec:
    """The sizes of a CLIP model.

    Args:
        text: the caption tower.
        vision: the image tower.
        features: of the common space.
        vocab_size: token ids lie below it.
        max_seq_len: tokens of a caption, start and end token included.
        image_size: side of the square images.
        patch_size: side of the square patches; divides `image_size`.
    """

    text: TowerSpec
    vision: TowerSpec
    features: int = 512
    vocab_size: int = 49408
    max_seq_len: int = 77
    image_size: int = 224
    patch_size: int = 32


class ClipModel(nn.Module):
    """Both towers and their projections; source: Radford et al. 2021, arXiv:2103.00020."""

    spec: ClipSpec

    def setup(self) -> None:
        """Declare the towers."""
        self.text = _TextTower(self.spec)
        self.vision = _VisionTower(self.spec)
        # Only scales the logits of training; kept so that nothing of a checkpoint is lost.
        self.logit_scale = self.param("logit_scale", nn.initializers.constant(2.6592), ())

    def __call__(self, tokens: jax.Array, ends: jax.Array, images: jax.Array):
        """Return what `encode_texts` and `encode_images` do."""
        return self.encode_texts(tokens, ends), self.encode_images(images)

    def encode_texts(self, tokens: jax.Array, ends: jax.Array) -> jax.Array:
        """Return [N, E] of ids [N, L], read off at the places `ends` [N]."""
        return self.text(tokens, ends)

    def encode_images(self, images: jax.Array) -> jax.Array:
        """Return [N, E] of normalised images [N, S, S, 3]."""
        return self.vision(images)


class _TextTower(nn.Module):
    spec: ClipSpec

    @nn.compact
    def __call__(self, tokens: jax.Array, ends: jax.Array) -> jax.Array:
        tower, init = self.spec.text, nn.initializers.normal(0.02)
        table = self.param("embed", init, (self.spec.vocab_size, tower.emb_features))
        places = self.param("position_embed", init, (self.spec.max_seq_len, tower.emb_features))
        x = jnp.take(table, tokens, axis=0) + places[: tokens.shape[1]]
        # Causal: what stands behind the end token is never seen from it.
        x, _ = tower.layers()(x, Sight(None, None), None)
        x = LayerNorm(tower.norm_epsilon, name="final_norm")(x)
        pooled = x[jnp.arange(len(x)), ends]
        return Dense((self.spec.features,), name="projection")(pooled)


class _VisionTower(nn.Module):
    spec: ClipSpec

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        tower, patch, init = self.spec.vision, self.spec.patch_size, nn.initializers.normal(0.02)
        side, width = self.spec.image_size // patch, tower.emb_features
        patches = images[:, : side * patch, : side * patch]
        patches = patches.reshape(-1, side, patch, side, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = Dense((width,), inputs=3, name="patch_embed")(patches)
        first = self.param("class_embed", init, (width,))
        first = jnp.broadcast_to(first, (len(x), 1, width))
        places = self.param("position_embed", init, (side * side + 1, width))
        x = jnp.concatenate([first, x.reshape(len(x), side * side, width)], 1) + places
        x = LayerNorm(tower.norm_epsilon, name="first_norm")(x)
        everywhere = jnp.ones((1, 1, x.shape[1], x.shape[1]), bool)
        x, _ = tower.layers()(x, Sight(None, everywhere), None)
        x = LayerNorm(tower.norm_epsilon, name="final_norm")(x[:, 0])
        return Dense((self.spec.features,), name="projection")(x)


@dataclass(frozen=True)
class ImageInput:
    """How bytes become what the image tower reads.

    Args:
        shortest_edge: the shorter side after the resize.
        crop: side of the square that is cut from the middle, at most `shortest_edge`.
        mean: of each channel, with levels in [0, 1].
        deviation: of each channel.
    """

    shortest_edge: int = 224
    crop: int = 224
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    deviation: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)

    def __call__(self, levels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return normalised squares [N, S, S, 3] of bytes [N, H, W, 3].

        Raises:
            InputRefused: an image so long that the resize would give more than 50,000 pixels a
                side.

        Source: transformers 5.24's CLIPImageProcessor on uint8 tensors, equal level for level.
        """
        short, long = sorted(levels.shape[1:3])
        stretched = self.shortest_edge * long // short
        if stretched > LONGEST_SIDE:
            raise InputRefused(
                f"images of {levels.shape[1]} x {levels.shape[2]}: with the shorter side at "
                f"{self.shortest_edge} the longer one would be {stretched} pixels, more than "
                f"{LONGEST_SIDE}. Crop them first."
            )
        upright = levels.shape[1] >= levels.shape[2]
        size = (stretched, self.shortest_edge) if upright else (self.shortest_edge, stretched)
        resized = resize_bicubic(levels, *size)
        top, left = ((side - self.crop) // 2 for side in size)
        square = resized[:, top : top + self.crop, left : left + self.crop]
        mean, deviation = (
            np.asarray(part, np.float32) * np.float32(255) for part in (self.mean, self.deviation)
        )
        return np.asarray((square.astype(np.float32) - mean) / deviation, np.float32)


@dataclass(frozen=True)
class ClipEncoder:
    """Images and captions to vectors; `bridges.encoders.clip.load_clip` reads one from a folder.

    Args:
        spec: the sizes.
        variables: of `ClipModel(spec)`.
        tokenizer: gives ids with start and end token.
        image_input: how bytes are prepared.
        end_token: the id whose first place a caption is read off at.
        overlong: what becomes of captions with more than `spec.max_seq_len` tokens. `end_token`
            cuts them so that the last one is the end token. `cut` drops the end token too, and
            with it the only place that has read the caption: what torchmetrics 1.9 computes, the
            vector of the start token whatever the caption says.

    Raises:
        InputRefused: another `overlong`.
    """

    spec: ClipSpec
    variables: Mapping[str, Any] = field(repr=False)
    tokenizer: TextProcessor = field(repr=False)
    image_input: ImageInput = ImageInput()
    end_token: int = 49407
    overlong: str = "end_token"

    def __post_init__(self) -> None:
        """Refuse a treatment of long captions that has no meaning."""
        if self.overlong not in OVERLONG:
            raise InputRefused(f"overlong is {self.overlong!a:.200}; expected one of {OVERLONG}")

    def encode_images(self, levels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return float32 [N, E], not normed, of bytes [N, H, W, 3]."""
        encode = partial(_encode_images, ClipModel(self.spec), self._placed)
        return in_chunks(encode, self.image_input(levels))

    def encode_texts(self, captions: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 [N, E], not normed; long captions are cut and counted in a warning."""
        return self.encode_tokens(self.tokenizer.encode_batch(captions))

    def encode_tokens(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Return float32 [N, E] of rows of ids that begin with the start token.

        What stands behind the first end token of a row is not read.

        Raises:
            InputRefused: an id outside the vocabulary.
        """
        cut = [self._cut(list(row)) for row in rows]
        changed = sum(len(row) > self.spec.max_seq_len for row in map(self._until_end, rows))
        if changed:
            warnings.warn(
                f"clip: {changed} of {len(cut)} captions have more than {self.spec.max_seq_len} "
                f"tokens and were shortened to so many ({self.overlong})",
                stacklevel=2,
            )
        longest = max(map(len, cut))
        width = min(-(-longest // BUCKET) * BUCKET, self.spec.max_seq_len)
        tokens = np.zeros((len(cut), width + 1), np.int32)
        for index, row in enumerate(cut):
            tokens[index, : len(row)] = row
            tokens[index, width] = row.index(self.end_token) if self.end_token in row else 0
        if tokens[:, :width].min() < 0 or tokens[:, :width].max() >= self.spec.vocab_size:
            raise InputRefused(
                f"clip: token ids from {tokens.min()} to {tokens[:, :width].max()}; the model "
                f"knows {self.spec.vocab_size}. Take the tokenizer of these weights."
            )
        return in_chunks(partial(_encode_tokens, ClipModel(self.spec), self._placed), tokens)

    def _until_end(self, row: Sequence[int]) -> list[int]:
        row = [int(token) for token in row]
        return row[: row.index(self.end_token) + 1] if self.end_token in row else row

    def _cut(self, row: list[int]) -> list[int]:
        row = self._until_end(row)
        limit = self.spec.max_seq_len
        if len(row) <= limit:
            return row
        return row[:limit] if self.overlong == "cut" else [*row[: limit - 1], self.end_token]

    @cached_property
    def _placed(self) -> Mapping[str, Any]:
        return jax.device_put(self.variables, jax.local_devices()[0])


@partial(jax.jit, static_argnums=0)
def _encode_images(model: ClipModel, variables: Mapping[str, Any], images: jax.Array) -> jax.Array:
    encoded: Any = model.apply(variables, images, method="encode_images")
    return encoded


@partial(jax.jit, static_argnums=0)
def _encode_tokens(model: ClipModel, variables: Mapping[str, Any], rows: jax.Array) -> jax.Array:
    encoded: Any = model.apply(variables, rows[:, :-1], rows[:, -1], method="encode_texts")
    return encoded
