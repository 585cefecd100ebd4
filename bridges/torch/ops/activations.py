"""Activation functions, element by element."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bridges.torch.ops.operator import array, operator


@operator("relu.default")
def _relu(x: jax.Array) -> jax.Array:
    return jax.nn.relu(x)


@operator("relu6.default")
def _relu6(x: jax.Array) -> jax.Array:
    return _hardtanh(x, 0.0, 6.0)


@operator("gelu.default")
def _gelu(x: jax.Array, approximate: str = "none") -> jax.Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@operator("silu.default")
def _silu(x: jax.Array) -> jax.Array:
    return jax.nn.silu(x)


@operator("mish.default")
def _mish(x: jax.Array) -> jax.Array:
    return x * jnp.tanh(jax.nn.softplus(x))


@operator("elu.default")
def _elu(x: jax.Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0):
    low = jnp.where(x > 0, 0.0, x)
    return jnp.where(x > 0, scale * x, scale * alpha * jnp.expm1(low * input_scale)).astype(x.dtype)


@operator("celu.default")
def _celu(x: jax.Array, alpha: float = 1.0) -> jax.Array:
    return _elu(x, alpha, 1.0, 1.0 / alpha)


@operator("selu.default")
def _selu(x: jax.Array) -> jax.Array:
    return _elu(x, 1.6732632423543772, 1.0507009873554805)


@operator("leaky_relu.default")
def _leaky_relu(x: jax.Array, negative_slope: float = 0.01) -> jax.Array:
    return jnp.where(x > 0, x, x * array(negative_slope, x.dtype))


@operator("prelu.default", "_prelu_kernel.default")
def _prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    if x.ndim == 0:
        weight = weight.reshape(())
    if weight.ndim == 1 and x.ndim > 1:
        weight = weight.reshape((1, -1) + (1,) * (x.ndim - 2))
    return jnp.where(x > 0, x, x * weight)


@operator("hardtanh.default")
def _hardtanh(x: jax.Array, min_val: float = -1.0, max_val: float = 1.0) -> jax.Array:
    low, high = array(min_val, x.dtype), array(max_val, x.dtype)
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


@operator("hardsigmoid.default")
def _hardsigmoid(x: jax.Array) -> jax.Array:
    return _hardtanh(x + 3, 0.0, 6.0) / 6


@operator("hardswish.default")
def _hardswish(x: jax.Array) -> jax.Array:
    return x * _hardtanh(x + 3, 0.0, 6.0) / 6


@operator("softplus.default")
def _softplus(x: jax.Array, beta: float = 1.0, threshold: float = 20.0) -> jax.Array:
    scaled = x * beta
    below = jnp.where(scaled > threshold, 0.0, scaled)
    return jnp.where(scaled > threshold, x, jnp.log1p(jnp.exp(below)) / beta).astype(x.dtype)


@operator("threshold.default")
def _threshold(x: jax.Array, threshold: float, value: float) -> jax.Array:
    return jnp.where(x <= threshold, array(value, x.dtype), x)


@operator("softshrink.default")
def _softshrink(x: jax.Array, lambd: float = 0.5) -> jax.Array:
    # Between the limits NaN stays NaN.
    outer = jnp.where(x > lambd, x - lambd, jnp.where(x < -lambd, x + lambd, x * 0))
    return outer.astype(x.dtype)


@operator("hardshrink.default")
def _hardshrink(x: jax.Array, lambd: float = 0.5) -> jax.Array:
    return jnp.where((x >= -lambd) & (x <= lambd), 0, x).astype(x.dtype)
