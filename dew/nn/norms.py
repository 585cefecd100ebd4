"""Layer norm and root-mean-square norm, computed in float32 whatever the input's dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + epsilon) * scale over the last axis.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467; as in transformers, the product with the
    scale comes after the cast back to the input's dtype.
    """

    epsilon: float
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [..., D]."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.param_dtype)
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + self.epsilon)
        return scale.astype(x.dtype) * wide.astype(x.dtype)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis.

    Source: Ba et al. 2016, arXiv:1607.06450.
    """

    epsilon: float
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [..., D]."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],), self.param_dtype)
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, -1, keepdims=True)
        spread = jax.lax.rsqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + self.epsilon)
        return (centred * spread * scale.astype(jnp.float32) + bias.astype(jnp.float32)).astype(
            x.dtype
        )


NORMS: dict[str, type[RMSNorm] | type[LayerNorm]] = {"rms": RMSNorm, "layer": LayerNorm}
"""Name to module, as `CausalTransformer.norm` spells it."""
