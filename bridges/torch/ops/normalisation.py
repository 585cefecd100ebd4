"""Layer, group, batch and root-mean-square normalisation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bridges.torch.ops.operator import operator


def _wide(x: jax.Array) -> jax.Array:
    """Return half-precision values in float32, in which torch takes their moments."""
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


def _moments(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    mean = jnp.mean(x, axis=axes, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axis=axes, keepdims=True)


def _kept(x: jax.Array, *parameters: Any) -> Any:
    """Return the dtype that torch's CPU kernels hand the moments on in: the parameters'."""
    return next((part.dtype for part in parameters if part is not None), x.dtype)


@operator("native_layer_norm.default")
def _layer_norm(
    x: jax.Array, normalized_shape: Any, weight: Any, bias: Any, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    wide = _wide(x)
    mean, variance = _moments(wide, tuple(range(x.ndim - len(normalized_shape), x.ndim)))
    scale = jax.lax.rsqrt(variance + eps)
    y = (wide - mean) * scale
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    kept = _kept(x, weight, bias)
    return y.astype(x.dtype), mean.astype(kept), scale.astype(kept)


@operator("layer_norm.default")
def _layer_norm_only(
    x: jax.Array,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> jax.Array:
    return _layer_norm(x, normalized_shape, weight, bias, eps)[0]


@operator("native_group_norm.default")
def _group_norm(
    x: jax.Array,
    weight: Any,
    bias: Any,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    grouped = _wide(x).reshape(x.shape[0], group, -1)
    mean, variance = _moments(grouped, (2,))
    scale = jax.lax.rsqrt(variance + eps)
    y = ((grouped - mean) * scale).reshape(x.shape)
    shape = (-1, *([1] * (x.ndim - 2)))
    y = y if weight is None else y * weight.reshape(shape)
    y = y if bias is None else y + bias.reshape(shape)
    kept = _kept(x, weight, bias)
    return y.astype(x.dtype), mean[..., 0].astype(kept), scale[..., 0].astype(kept)


def _channels(value: jax.Array, x: jax.Array) -> jax.Array:
    return value.reshape(1, -1, *([1] * (x.ndim - 2)))


def _scaled(x: jax.Array, mean: jax.Array, scale: jax.Array, weight: Any, bias: Any) -> jax.Array:
    y = (_wide(x) - _channels(mean, x)) * _channels(scale, x)
    y = y if weight is None else y * _channels(weight, x)
    y = y if bias is None else y + _channels(bias, x)
    return y.astype(x.dtype)


@operator("_native_batch_norm_legit_no_training.default")
def _batch_norm_fixed(
    x: jax.Array,
    weight: Any,
    bias: Any,
    running_mean: jax.Array,
    running_var: jax.Array,
    momentum: float,
    eps: float,
) -> tuple:
    scale = jax.lax.rsqrt(running_var + eps)
    empty = jnp.zeros(0, x.dtype)
    return _scaled(x, running_mean, scale, weight, bias), empty, empty


def _batch_moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean, variance = _moments(_wide(x), (0, *range(2, x.ndim)))
    return mean.reshape(-1), variance.reshape(-1)


@operator("_native_batch_norm_legit.no_stats")
def _batch_norm_own(
    x: jax.Array, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple:
    mean, variance = _batch_moments(x)
    scale = jax.lax.rsqrt(variance + eps)
    kept = _kept(x, weight, bias)
    return _scaled(x, mean, scale, weight, bias), mean.astype(kept), scale.astype(kept)


@operator("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.default",
          "native_batch_norm.default")  # fmt: skip
def _batch_norm(
    x: jax.Array,
    weight: Any,
    bias: Any,
    running_mean: jax.Array,
    running_var: jax.Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple:
    """Return y, this batch's mean and 1 / deviation, and the running moments after it."""
    if not training:
        y, mean, scale = _batch_norm_fixed(
            x, weight, bias, running_mean, running_var, momentum, eps
        )
        return y, mean, scale, running_mean, running_var
    mean, variance = _batch_moments(x)
    scale = jax.lax.rsqrt(variance + eps)
    count = x.size // x.shape[1]
    unbiased = variance * (count / max(count - 1, 1))
    held = jax.lax.stop_gradient((mean, unbiased))
    new_mean = (1 - momentum) * running_mean + momentum * held[0].astype(running_mean.dtype)
    new_var = (1 - momentum) * running_var + momentum * held[1].astype(running_var.dtype)
    return _scaled(x, mean, scale, weight, bias), mean, scale, new_mean, new_var


@operator("_fused_rms_norm.default")
def _fused_rms_norm(x: jax.Array, normalized_shape: Any, weight: Any, eps: float | None) -> tuple:
    wide = _wide(x)
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    eps = float(jnp.finfo(wide.dtype).eps) if eps is None else eps
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=axes, keepdims=True) + eps)
    y = wide * scale
    return (y if weight is None else y * weight).astype(x.dtype), scale


@operator("rms_norm.default")
def _rms_norm(x: jax.Array, normalized_shape: Any, weight: Any = None, eps: float | None = None):
    return _fused_rms_norm(x, normalized_shape, weight, eps)[0]
