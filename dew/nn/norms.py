"""Layer norm and root-mean-square norm, computed in float32 whatever the input's dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.nn.recompute import recomputed


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

        def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
            wide = x.astype(jnp.float32)
            square = jnp.mean(jnp.square(wide), -1, keepdims=True)
            wide = wide * jax.lax.rsqrt(square + self.epsilon)
            return scale.astype(x.dtype) * wide.astype(x.dtype)

        return recomputed(normed)(x, scale)


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

        def normed(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
            wide = x.astype(jnp.float32)
            centred = wide - jnp.mean(wide, -1, keepdims=True)
            variance = jnp.mean(jnp.square(centred), -1, keepdims=True)
            scaled = centred * jax.lax.rsqrt(variance + self.epsilon) * scale.astype(jnp.float32)
            return (scaled + bias.astype(jnp.float32)).astype(x.dtype)

        return recomputed(normed)(x, scale, bias)


class OffsetRMSNorm(nn.Module):
    """x / sqrt(mean(x²) + epsilon) * (1 + scale) over the last axis.

    Source: Gemma's report, arXiv:2403.08295; as in transformers, the product with the scale comes
    before the cast back to the input's dtype.
    """

    epsilon: float
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [..., D]."""
        scale = self.param("scale", nn.initializers.zeros, (x.shape[-1],), self.param_dtype)

        def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
            wide = x.astype(jnp.float32)
            square = jnp.mean(jnp.square(wide), -1, keepdims=True)
            wide = wide * jax.lax.rsqrt(square + self.epsilon)
            return (wide * (1.0 + scale.astype(jnp.float32))).astype(x.dtype)

        return recomputed(normed)(x, scale)


NORMS: dict[str, Callable[..., Any]] = {
    "rms": RMSNorm,
    "rms_offset": OffsetRMSNorm,
    "layer": LayerNorm,
}
"""Name to module, as `CausalTransformer.norm` spells it."""
