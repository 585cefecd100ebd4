"""I-JEPA: predict the representations of an image's blocks from those of its visible rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dew.artifacts import Representations
from dew.errors import InputRefused
from dew.inputs import Field, InputSpec
from dew.nn.backbones.vision_transformer import VisionTransformer
from dew.nn.patch_predictor import PatchPredictor
from dew.objectives.base import Aux, EMASpec, Objective, Ratio, Step
from dew.objectives.block_masks import BlockMasks
from dew.typing import Variables

NORM_EPSILON = 1e-5


class JepaObjective(Objective):
    """Smooth L1 distance of predicted tokens to a slower encoder's, layer-normed, at hidden blocks.

    The target encoder is the average of the encoder over the updates, with a weight that rises
    linearly from `decay` to 1 over `updates` updates. It sees the whole image; no gradient flows
    through it. `params` holds `encoder` and `predictor`.

    A batch holds `image`, [B, H, W, C], floats in [-1, 1] or bytes; optionally `label`, int32 [B],
    which probes read.

    Args:
        encoder: what is learned.
        updates: optimizer updates after which the target encoder stands still.
        masks: how blocks are drawn; None takes the paper's on the encoder's grid.
        predictor_features, predictor_layers, predictor_heads: the predictor's sizes; None takes
            half of the encoder's width, half of its layers, and its heads.
        decay: the average's weight at the start.

    Raises:
        InputRefused: masks of another grid, or settings out of range.

    Source: Assran et al. 2023, arXiv:2301.08243.
    """

    def __init__(
        self,
        encoder: VisionTransformer,
        updates: int,
        *,
        masks: BlockMasks | None = None,
        predictor_features: int | None = None,
        predictor_layers: int | None = None,
        predictor_heads: int | None = None,
        decay: float = 0.996,
    ) -> None:
        self.masks = BlockMasks(encoder.grid) if masks is None else masks
        if self.masks.grid != encoder.grid or updates < 1 or not 0 <= decay <= 1:
            raise InputRefused(
                f"JEPA: masks of grid {self.masks.grid} for an encoder of {encoder.grid}, updates "
                f"{updates}, decay {decay}; expected one grid, 1 or more, and [0, 1]"
            )
        self.encoder = encoder
        self.predictor = PatchPredictor(
            grid=encoder.grid,
            out_features=encoder.emb_features,
            features=predictor_features or encoder.emb_features // 2,
            num_layers=predictor_layers or max(1, encoder.num_layers // 2),
            num_heads=predictor_heads or encoder.num_heads,
            norm_epsilon=encoder.norm_epsilon,
            activation=encoder.activation,
            dtype=encoder.dtype,
            param_dtype=encoder.param_dtype,
            attention_impl=encoder.attention_impl,
            remat=encoder.remat,
        )
        self.ema = EMASpec(
            decay=lambda count: decay + (1 - decay) * jnp.minimum(count / updates, 1.0),
            select=lambda path: path.startswith("encoder/"),
        )
        self.shape = (*encoder.image_size, encoder.channels)
        self.inputs = InputSpec(Field("image", self.shape))

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return `variables`, or fresh ones drawn with `key`."""
        if variables is not None:
            return variables
        encoder_key, predictor_key, mask_key = jax.random.split(key, 3)
        masks = self.masks.draw(mask_key, 1)
        encoder = self.encoder.init(encoder_key, jnp.zeros((1, *self.shape)))
        context = jnp.zeros((1, self.masks.kept, self.encoder.emb_features))
        predictor = self.predictor.init(predictor_key, context, *masks)
        return {"params": {"encoder": encoder["params"], "predictor": predictor["params"]}}

    def loss(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> tuple[Ratio, Aux]:
        """Return the summed distances over the number of hidden patches, and signs of collapse."""
        if step.ema is None:
            raise InputRefused("JEPA predicts its average; pass it as the step's ema")
        images = pixels(batch["image"])
        masks = self.masks.draw(step.key, len(images))
        wanted = jax.lax.stop_gradient(normed(self.encoded(step.ema, images)))
        context: Any = self.encoder.apply(
            {"params": variables["params"]["encoder"]}, images, masks.context, masks.context_mask
        )
        predicted: Any = self.predictor.apply(
            {"params": variables["params"]["predictor"]}, context, *masks
        )
        at = jnp.take_along_axis(wanted[:, None], masks.targets[..., None], axis=2)
        distances = jnp.mean(smooth_l1(predicted.astype(jnp.float32) - at), axis=-1)
        counted = masks.target_mask.astype(jnp.float32)
        metrics = {
            "target_std": jnp.mean(jnp.std(wanted, axis=(0, 1))),
            "effective_rank": effective_rank(jnp.mean(wanted, axis=1)),
            "context_patches": jnp.mean(jnp.sum(masks.context_mask, axis=1)),
        }
        return Ratio(jnp.sum(distances * counted), jnp.sum(counted)), Aux(metrics)

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> Representations:
        """Return the mean token of each whole image under the target encoder, [B, D].

        Without an average the encoder itself is asked; without labels, none counts.
        """
        chosen = variables if step.ema is None else step.ema
        tokens = self.encoded(chosen, pixels(batch["image"]))
        labels = batch.get("label")
        none = jnp.full((len(tokens),), -1, jnp.int32)
        return Representations(jnp.mean(tokens, axis=1), none if labels is None else labels)

    def encoded(self, variables: Variables, images: jax.Array) -> jax.Array:
        """Return float32 [B, N, D] tokens of whole images under the encoder of `variables`."""
        tokens: Any = self.encoder.apply({"params": variables["params"]["encoder"]}, images)
        return tokens.astype(jnp.float32)


def pixels(images: jax.Array) -> jax.Array:
    """Return images as floats in [-1, 1]; bytes become x / 127.5 - 1."""
    if images.dtype == jnp.uint8:
        return images.astype(jnp.float32) / 127.5 - 1.0
    return images


def normed(tokens: jax.Array) -> jax.Array:
    """Return tokens [..., D] with mean 0 and variance 1 over their features."""
    centred = tokens - jnp.mean(tokens, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + NORM_EPSILON)


def smooth_l1(errors: jax.Array) -> jax.Array:
    """Return e² / 2 where |e| is below 1, else |e| - 1/2."""
    size = jnp.abs(errors)
    return jnp.where(size < 1, 0.5 * jnp.square(errors), size - 0.5)


def effective_rank(features: jax.Array) -> jax.Array:
    """Return exp of the entropy of the singular values' shares: 1 collapsed, min(B, D) at most.

    Args:
        features: [B, D]; their mean is taken off first.

    Source: Roy and Vetterli 2007, "The effective rank"; its use as a sign of collapse is from
    Garrido et al. 2023, arXiv:2210.02885.
    """
    centred = features - jnp.mean(features, axis=0)
    rows, width = centred.shape
    gram = centred @ centred.T if rows <= width else centred.T @ centred
    values = jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh(gram), 0.0))
    shares = values / jnp.maximum(jnp.sum(values), 1e-12)
    entropy = -jnp.sum(jnp.where(shares > 0, shares * jnp.log(jnp.maximum(shares, 1e-30)), 0.0))
    return jnp.exp(entropy)
