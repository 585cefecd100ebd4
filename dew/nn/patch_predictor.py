"""The predictor of a joint-embedding architecture: tokens of hidden patches from visible ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.nn.backbones.vision_transformer import sincos_positions, vision_block
from dew.nn.dense import INIT_DEVIATION, Dense
from dew.nn.norms import LayerNorm
from dew.nn.sight import Sight
from dew.nn.stack import block_stack, full_mask


class PatchPredictor(nn.Module):
    """A narrow transformer over the visible tokens and one learned query a hidden patch.

    Args:
        grid: rows and columns of patches.
        out_features: D, width of the encoder's tokens.
        features: F, its own width.
        num_layers, num_heads: depth and heads; the MLP is four times F wide.
        norm_epsilon, activation, dtype, param_dtype, attention_impl, remat: as the encoder's.

    Source: Assran et al. 2023, arXiv:2301.08243, section 3.
    """

    grid: tuple[int, int]
    out_features: int
    features: int
    num_layers: int
    num_heads: int
    norm_epsilon: float = 1e-6
    activation: str = "gelu"
    dtype: str = "float32"
    param_dtype: str = "float32"
    attention_impl: str = "auto"
    remat: bool = False

    @nn.compact
    def __call__(
        self,
        context: jax.Array,
        keep: jax.Array,
        keep_mask: jax.Array,
        targets: jax.Array,
        target_mask: jax.Array,
    ) -> jax.Array:
        """Return the predicted tokens; each block of targets is predicted by itself.

        Args:
            context: [B, K, D], the encoder's tokens of the visible patches.
            keep: int32 [B, K], which patches these are; `keep_mask` [B, K] is nonzero where real.
            targets: int32 [B, M, T], the patches of M blocks; `target_mask` [B, M, T] likewise.

        Returns:
            [B, M, T, D].
        """
        batch, blocks, count = targets.shape
        places = jnp.asarray(sincos_positions(*self.grid, self.features)).astype(self.dtype)
        query = self.param(
            "query", nn.initializers.normal(INIT_DEVIATION), (self.features,), self.param_dtype
        )
        seen = self._dense(self.features, "into")(context) + places[keep]
        asked = query.astype(self.dtype) + places[targets]
        seen = jnp.broadcast_to(seen[:, None], (batch, blocks, *seen.shape[1:]))
        x = jnp.concatenate([seen, asked], axis=2).reshape(batch * blocks, -1, self.features)
        real = jnp.broadcast_to(keep_mask[:, None], (batch, blocks, keep.shape[1])) != 0
        real = jnp.concatenate([real, target_mask != 0], axis=2).reshape(batch * blocks, -1)
        spec = vision_block(self, self.features, self.num_heads, 4 * self.features)
        layers = block_stack(spec, self.num_layers, remat=self.remat)
        x, _ = layers(x, Sight(None, full_mask(x.shape[1], real, None)), None)
        x = LayerNorm(self.norm_epsilon, self.param_dtype, name="final_norm")(x[:, -count:])
        return self._dense(self.out_features, "out")(x).reshape(batch, blocks, count, -1)

    def _dense(self, features: int, name: str) -> Dense:
        return Dense(
            (features,),
            use_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name=name,
        )
