"""Fourier transforms."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from bridges.torch.ops.operator import operator


def _scale(mode: int, count: int) -> float:
    """Return what torch multiplies by: 0 nothing, 1 the root of the count, 2 the count."""
    return (1.0, 1 / math.sqrt(count), 1 / count)[mode]


@operator("_fft_c2c.default")
def _fft_c2c(x: jax.Array, dim: Any, normalization: int, forward: bool) -> jax.Array:
    count = math.prod(x.shape[axis] for axis in dim)
    scale = _scale(normalization, count)
    if forward:
        return jnp.fft.fftn(x, axes=tuple(dim)) * scale
    return jnp.fft.ifftn(x, axes=tuple(dim)) * (scale * count)


@operator("_fft_r2c.default")
def _fft_r2c(x: jax.Array, dim: Any, normalization: int, onesided: bool) -> jax.Array:
    count = math.prod(x.shape[axis] for axis in dim)
    transform = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return transform(x, axes=tuple(dim)) * _scale(normalization, count)


@operator("_fft_c2r.default")
def _fft_c2r(x: jax.Array, dim: Any, normalization: int, last_dim_size: int) -> jax.Array:
    sizes = [x.shape[axis] for axis in dim[:-1]] + [int(last_dim_size)]
    scale = _scale(normalization, math.prod(sizes)) * math.prod(sizes)
    return jnp.fft.irfftn(x, s=sizes, axes=tuple(dim)) * scale
