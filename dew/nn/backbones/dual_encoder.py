"""The dual encoder: CLIP and SigLIP, texts and images as vectors that are compared."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.nn.backbones.encoder_block import linear_axes
from dew.nn.backbones.image_encoder import VIT_BASE, ImageEncoder, ImageSpec
from dew.nn.backbones.text_tower import CLIP_BASE, TextSpec, TextTower
from dew.nn.dense import Dense

FIRST_SCALE = 2.6592
TASKS = {"towers": "zero-shot-image-classification", "image": "image-classification"}
INPUTS = {
    "towers": ("input_ids", "pixel_values", "attention_mask", "position_ids"),
    "image": ("pixel_values",),
}
"""The kinds of heads to the pipeline's task that each does, and to what the model takes."""


class DualEncoder(nn.Module):
    """Maps texts and images to vectors of length 1 and to the cosine of each pair, scaled.

    Args:
        text: the sizes of the text tower.
        vision: the sizes of the image tower.
        projected: E, width of the maps that stand on the towers; 0 where their own vectors are
            compared.
        biased: whether the scaled cosines have a learned bias; it and the scale then are [1].
        head: "towers" (both), or "image" (labels of the image, without the text tower).
        labels: how many labels there are.
        dtype: what activations are computed in; `param_dtype` is what parameters are stored in.
        attention_impl: "auto", "xla" or "cudnn".
        remat: recompute each layer in the backward pass instead of keeping its activations.

    Source: Radford et al. 2021, arXiv:2103.00020; Zhai et al. 2023, arXiv:2303.15343.
    """

    counts_real_tokens: ClassVar[bool] = False

    text: TextSpec = CLIP_BASE
    vision: ImageSpec = VIT_BASE
    projected: int = 512
    biased: bool = False
    head: str = "towers"
    labels: int = 2
    dtype: str = "float32"
    param_dtype: str = "float32"
    attention_impl: str = "auto"
    remat: bool = False

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the pipeline's tasks that the model is fit for."""
        return (TASKS[self.head],)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs that the model takes, by Hugging Face's names."""
        return INPUTS[self.head]

    @property
    def required_inputs(self) -> tuple[str, ...]:
        """Those of them that must be given."""
        return tuple(name for name in ("input_ids", "pixel_values") if name in self.input_names)

    @property
    def channels(self) -> int:
        """C, the channels of an image."""
        return self.vision.channels

    @property
    def vocab_size(self) -> int:
        """Ids lie below it."""
        return self.text.vocab_size

    @property
    def position_limit(self) -> int | None:
        """How many tokens a text may have."""
        return self.text.max_seq_len

    @property
    def num_layers(self) -> int:
        """How many layers are stacked, in the deeper tower."""
        both = self.vision.num_layers, self.text.num_layers
        return max(both) if self.head == "towers" else both[0]

    def setup(self) -> None:
        """Declare the towers and what stands on them."""
        self.vision_model = ImageEncoder(**self._image_fields())
        if self.head == "image":
            return
        self.text_model = TextTower(**self._text_fields())
        if self.projected:
            self.text_projection, self.visual_projection = self._dense(), self._dense()
        shape = (1,) if self.biased else ()
        scale = nn.initializers.constant(FIRST_SCALE)
        self.logit_scale = self.param("logit_scale", scale, shape, self.param_dtype)
        if self.biased:
            zeros = nn.initializers.zeros
            self.logit_bias = self.param("logit_bias", zeros, shape, self.param_dtype)

    def outputs(
        self,
        pixel_values: jax.Array,
        input_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        position_ids: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names, those of a tower by its name and a dot.

        Args:
            pixel_values: [M, C, H, W], normalised.
            input_ids: int32 [N, L].
            attention_mask: [N, L], nonzero where a token is real; all are where None.
            position_ids: int32 [N, L]; counted where None.

        Returns:
            `text_embeds` [N, E] and `image_embeds` [M, E] of length 1, float32 `logits_per_text`
            [N, M] and `logits_per_image` [M, N], and each tower's states and vectors; or float32
            `logits` [M, labels].
        """
        seen = self.vision_model.outputs(pixel_values)
        if self.head == "image" or input_ids is None:
            return seen
        read = self.text_model.outputs(input_ids, attention_mask, position_ids)
        if self.projected:
            read["pooler_output"] = self.text_projection(read["pooler_output"])
            seen["pooler_output"] = self.visual_projection(seen["pooler_output"])
        texts, images = (normed(found["pooler_output"]) for found in (read, seen))
        cosines = jnp.matmul(texts, images.T, preferred_element_type=jnp.float32)
        scores = cosines * jnp.exp(self.logit_scale.astype(jnp.float32))
        if self.biased:
            scores = scores + self.logit_bias.astype(jnp.float32)
        towers = {"text_model_output": read, "vision_model_output": seen}
        return {
            "logits_per_image": scores.T,
            "logits_per_text": scores,
            "text_embeds": texts,
            "image_embeds": images,
            **{
                f"{tower}.{name}": value
                for tower, found in towers.items()
                for name, value in found.items()
            },
        }

    def text_tower(self) -> TextTower:
        """Return the text tower alone."""
        return TextTower(**self._text_fields(), parent=None)

    def image_tower(self) -> ImageEncoder:
        """Return the image tower alone, with the head where it is "image"."""
        return ImageEncoder(**self._image_fields(), parent=None)

    def parameter_axes(self) -> dict[str, Any]:
        """Return the name of each axis of each parameter: what a layout's rules speak of."""
        axes: dict[str, Any] = {"vision_model": self.image_tower().parameter_axes()}
        if self.head == "image":
            return axes
        axes["text_model"] = self.text_tower().parameter_axes()
        if self.projected:
            for name in ("text_projection", "visual_projection"):
                axes[name] = linear_axes(("embed",), ("projected",), False)
        one = ("one",) if self.biased else ()
        axes["logit_scale"] = one
        return {**axes, "logit_bias": one} if self.biased else axes

    def parameter_shapes(self) -> dict[str, Any]:
        """Return the shapes of `init`'s parameters, without tracing it."""
        shapes: dict[str, Any] = {"vision_model": self.image_tower().parameter_shapes()}
        if self.head == "image":
            return shapes
        shapes["text_model"] = self.text_tower().parameter_shapes()

        def leaf(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, self.param_dtype)

        if self.projected:
            for name, tower in (("text_projection", self.text), ("visual_projection", self.vision)):
                shapes[name] = {"kernel": leaf(tower.emb_features, self.projected)}
        one = leaf(1) if self.biased else leaf()
        shapes["logit_scale"] = one
        return {**shapes, "logit_bias": one} if self.biased else shapes

    def example_inputs(self) -> dict[str, np.ndarray]:
        """Return inputs for a short run that says whether two models are the same."""
        images = self.image_tower().example_inputs()
        return {**self.text_tower().example_inputs(), **images} if self.head == "towers" else images

    def _text_fields(self) -> dict[str, Any]:
        return {"spec": self.text, **self._shared_fields()}

    def _image_fields(self) -> dict[str, Any]:
        head = "image" if self.head == "image" else ""
        return {"spec": self.vision, "head": head, "labels": self.labels, **self._shared_fields()}

    def _shared_fields(self) -> dict[str, Any]:
        names = ("dtype", "param_dtype", "attention_impl", "remat")
        return {name: getattr(self, name) for name in names}

    def _dense(self) -> Dense:
        return Dense((self.projected,), dtype=self.dtype, param_dtype=self.param_dtype)


def normed(vectors: jax.Array) -> jax.Array:
    """Return vectors [N, E] divided by their Euclidean length."""
    wide = vectors.astype(jnp.float32)
    length = jnp.sqrt(jnp.sum(jnp.square(wide), axis=-1, keepdims=True))
    return (wide / length).astype(vectors.dtype)
