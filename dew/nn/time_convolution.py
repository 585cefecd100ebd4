"""Convolutions of sounds and of what is made of them along time, [B, T, C]."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.errors import InputRefused

LAYOUT = ("NWC", "WIO", "NWC")
TAPS = 8


class TimeConvolution(nn.Module):
    """A convolution of [B, T, C] along time, its kernel [size, C, features].

    Args:
        features: of the result.
        size: places of the kernel.
        stride: between the places of the result.
        padding: zeros before the first place and after the last.
        use_bias: whether a bias is added.
        dtype: what is computed in; `param_dtype` is what parameters are stored in.
    """

    features: int
    size: int
    stride: int = 1
    padding: int = 0
    use_bias: bool = True
    dtype: str = "float32"
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return [B, (T + 2 padding - size) // stride + 1, features]."""
        shape = (self.size, x.shape[-1], self.features)
        init = nn.initializers.normal((self.size * x.shape[-1]) ** -0.5)
        kernel = self.param("kernel", init, shape, self.param_dtype)
        x = x.astype(self.dtype)
        edges = [(self.padding, self.padding)]
        y = jax.lax.conv_general_dilated(
            x, kernel.astype(x.dtype), (self.stride,), edges, dimension_numbers=LAYOUT
        )
        if not self.use_bias:
            return y
        bias = self.param("bias", nn.initializers.zeros, (self.features,), self.param_dtype)
        return y + bias.astype(self.dtype)


class PlaceConvolution(nn.Module):
    """The long convolution that gives each place of [B, T, D] its position, kept as long.

    The channels are convolved in groups. The kernel is [size, D / groups, D], and each of its
    places is scaled to the length that `scale` [size] names.

    Args:
        features: D.
        size: places of the kernel, half of them before the place itself.
        groups: of channels.
        dtype: what is computed in; `param_dtype` is what parameters are stored in.

    Source: Baevski et al. 2020, arXiv:2006.11477; Salimans and Kingma 2016, arXiv:1602.07868, for
    the scaling of the kernel.
    """

    features: int
    size: int
    groups: int
    dtype: str = "float32"
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return [B, T, D]."""
        if self.features % self.groups:
            raise InputRefused(
                f"{self.features} features cannot be convolved in {self.groups} equal groups"
            )
        shape = (self.size, self.features // self.groups, self.features)
        init = nn.initializers.normal(2.0 * (self.size * self.features) ** -0.5)
        kernel = self.param("kernel", init, shape, self.param_dtype)
        scale = self.param("scale", nn.initializers.ones, (self.size,), self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), self.param_dtype)
        before = self.size // 2
        x = jnp.pad(x.astype(self.dtype), ((0, 0), (before, self.size - 1 - before), (0, 0)))
        y: Any = grouped(x, scaled(kernel, scale).astype(x.dtype), self.groups)
        return y + bias.astype(x.dtype)


def scaled(kernel: jax.Array, scale: jax.Array) -> jax.Array:
    """Return `kernel` [size, C, D] with the length of each place's part made `scale` [size]."""
    wide = kernel.astype(jnp.float32)
    length = jnp.sqrt(jnp.sum(jnp.square(wide), axis=(1, 2)))
    return wide * (scale.astype(jnp.float32) / length)[:, None, None]


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def grouped(x: jax.Array, kernel: jax.Array, groups: int) -> jax.Array:
    """Return [B, T, D] of `x` [B, T + size - 1, D] and `kernel` [size, D / groups, D].

    The backward pass is written out: what XLA derives for the kernel of grouped channels takes
    many times as long on CPUs.
    """
    return jax.lax.conv_general_dilated(
        x, kernel, (1,), [(0, 0)], dimension_numbers=LAYOUT, feature_group_count=groups
    )


def _grouped_forward(x: jax.Array, kernel: jax.Array, groups: int):
    return grouped(x, kernel, groups), (x, kernel)


def _grouped_backward(groups: int, operands: tuple[jax.Array, jax.Array], gradient: jax.Array):
    x, kernel = operands
    size, inner, features = kernel.shape
    turned = kernel[::-1].reshape(size, inner, groups, features // groups)
    turned = turned.transpose(0, 3, 2, 1).reshape(size, features // groups, inner * groups)
    around = ((0, 0), (size - 1, size - 1), (0, 0))
    to_x = grouped(jnp.pad(gradient, around), turned, groups)
    # A few places of the kernel at a time are one product: all windows at once would be `size`
    # times the input.
    steps, (rows, length, _) = -(-size // TAPS), gradient.shape
    x = jnp.pad(x, ((0, 0), (0, steps * TAPS - size), (0, 0)))
    slope = gradient.reshape(rows * length, groups, -1).transpose(1, 0, 2)

    def to_places(first: jax.Array) -> jax.Array:
        near = jax.lax.dynamic_slice_in_dim(x, first, length + TAPS - 1, axis=1)
        near = jnp.stack([near[:, place : place + length] for place in range(TAPS)], axis=2)
        near = near.reshape(rows * length, TAPS, groups, inner).transpose(2, 1, 3, 0)
        return jnp.matmul(near.reshape(groups, TAPS * inner, -1), slope)

    parts = jax.lax.map(to_places, jnp.arange(steps) * TAPS)
    parts = parts.reshape(steps, groups, TAPS, inner, -1).transpose(0, 2, 3, 1, 4)
    return to_x, parts.reshape(steps * TAPS, inner, features)[:size]


grouped.defvjp(_grouped_forward, _grouped_backward)
