"""Convolutions of images whose channels come last, and batch norms over their channels."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.nn.activations import activation
from dew.nn.dense import linear

Padding = tuple[tuple[int, int], tuple[int, int]]


class Convolution(nn.Module):
    """A convolution of images [N, H, W, C], zeros beyond their edges.

    The kernel is [rows, columns, C, features], [C, features] where it is of single pixels, and
    [rows, columns, C] where each channel has its own.

    Args:
        features: of the result; C where `depthwise`.
        size: rows and columns of the kernel.
        stride: between the places of the result, on both axes.
        padding: rows above and below, columns left and right; None for (size - 1) / 2 each,
            times the dilation.
        dilation: between the pixels that the kernel looks at.
        depthwise: whether each channel is convolved with its own kernel.
        use_bias: whether a bias is added.
        dtype: what is computed in; `param_dtype` is what parameters are stored in.
    """

    features: int
    size: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: Padding | None = None
    dilation: int = 1
    depthwise: bool = False
    use_bias: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return [N, H', W', features]."""
        channels = (x.shape[-1],) if self.depthwise else (x.shape[-1], self.features)
        shape = channels if self._is_pointwise else (*self.size, *channels)
        init = nn.initializers.normal(1.0 / (self.size[0] * self.size[1] * channels[0]) ** 0.5)
        kernel = self.param("kernel", init, shape, self.param_dtype)
        x = x.astype(self.dtype)
        y = self._convolved(x, kernel)
        if not self.use_bias:
            return y
        bias = self.param("bias", nn.initializers.zeros, (self.features,), self.param_dtype)
        return y + bias.astype(self.dtype)

    @property
    def _is_pointwise(self) -> bool:
        return self.size == (1, 1) and not self.depthwise

    def _convolved(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        padding = self.padding
        if padding is None:
            (above, left) = (self.dilation * (side - 1) // 2 for side in self.size)
            padding = ((above, above), (left, left))
        if self._is_pointwise:
            # As a matrix product: XLA's convolutions of single pixels are slow on CPUs.
            x = jnp.pad(x, ((0, 0), *padding, (0, 0))) if any(map(any, padding)) else x
            return linear(x[:, :: self.stride, :: self.stride], kernel, 1)
        if self.depthwise:
            return depthwise(x, kernel.astype(x.dtype), self.stride, padding, self.dilation)
        return jax.lax.conv_general_dilated(
            x,
            kernel.astype(x.dtype),
            (self.stride, self.stride),
            padding,
            rhs_dilation=(self.dilation, self.dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def depthwise(
    x: jax.Array, kernel: jax.Array, stride: int, padding: Padding, dilation: int
) -> jax.Array:
    """Return each channel of `x` [N, H, W, C] convolved with its own kernel [R, S, C].

    It is a sum over the kernel's places, which XLA makes one loop of; its grouped convolutions
    are many times slower on CPUs. The backward pass is written out: XLA needs a minute to compile
    what it derives from the sums of a kernel of 7 x 7.
    """
    return _summed(jnp.pad(x, ((0, 0), *padding, (0, 0))), kernel, stride, dilation)


def _depthwise_forward(
    x: jax.Array, kernel: jax.Array, stride: int, padding: Padding, dilation: int
):
    return depthwise(x, kernel, stride, padding, dilation), (x, kernel)


def _depthwise_backward(
    stride: int,
    padding: Padding,
    dilation: int,
    operands: tuple[jax.Array, jax.Array],
    gradient: jax.Array,
):
    x, kernel = operands
    padded = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    reached = [stride * (side - 1) + 1 for side in gradient.shape[1:3]]
    spans = [dilation * (side - 1) for side in kernel.shape[:2]]
    places = zip(spans, padded.shape[1:3], reached, strict=True)
    around = [(span, side - reach, stride - 1) for span, side, reach in places]
    spread = jax.lax.pad(gradient, jnp.zeros((), x.dtype), [(0, 0, 0), *around, (0, 0, 0)])
    to_padded = _summed(spread, kernel[::-1, ::-1], 1, dilation)
    (above, _), (left, _) = padding
    to_x = to_padded[:, above : above + x.shape[1], left : left + x.shape[2]]

    def to_place(place: jax.Array) -> jax.Array:
        row, column = place // kernel.shape[1], place % kernel.shape[1]
        first = (0, row * dilation, column * dilation, 0)
        sizes = (len(x), *reached, x.shape[3])
        part = jax.lax.dynamic_slice(padded, first, sizes)[:, ::stride, ::stride]
        return jnp.sum(part * gradient, axis=(0, 1, 2))

    count = kernel.shape[0] * kernel.shape[1]
    return to_x, jax.lax.map(to_place, jnp.arange(count)).reshape(kernel.shape)


depthwise.defvjp(_depthwise_forward, _depthwise_backward)


def _summed(padded: jax.Array, kernel: jax.Array, stride: int, dilation: int) -> jax.Array:
    spans = [dilation * (side - 1) for side in kernel.shape[:2]]
    ends = [side - span for side, span in zip(padded.shape[1:3], spans, strict=True)]
    terms = []
    for row in range(kernel.shape[0]):
        for column in range(kernel.shape[1]):
            first, second = row * dilation, column * dilation
            part = padded[
                :, first : first + ends[0] : stride, second : second + ends[1] : stride, :
            ]
            terms.append(part * kernel[row, column])
    return reduce(jnp.add, terms)


STATISTICS = ("running_mean", "running_variance")
"""What parameters that no optimizer moves are called."""
FOLLOWED = "followed"
"""The collection that holds their next values, at the paths that they have among the params."""


class BatchNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, the statistics being parameters.

    No gradient reaches them, and the train step leaves the parameters of these names alone, since
    an optimizer's weight decay would shrink them. Where `apply` may change the collection
    `followed`, and `follow` is above 0, the batch's own statistics stand in their place, and the
    running ones follow these: their next values lie in that collection.

    Args:
        epsilon: added to the variance.
        param_dtype: what the parameters are stored in.
        follow: the share of the batch's statistics in the next running ones; torch's momentum.

    Source: Ioffe and Szegedy 2015, arXiv:1502.03167, and torch 2.14's `BatchNorm2d`, whose running
    variance is the unbiased one.
    """

    epsilon: float
    param_dtype: str = "float32"
    follow: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [..., C]."""
        shape, ones, zeros = (x.shape[-1],), nn.initializers.ones, nn.initializers.zeros
        scale = self.param("scale", ones, shape, self.param_dtype).astype(jnp.float32)
        bias = self.param("bias", zeros, shape, self.param_dtype).astype(jnp.float32)
        held = [
            jax.lax.stop_gradient(self.param(name, init, shape, self.param_dtype))
            for name, init in zip(STATISTICS, (zeros, ones), strict=True)
        ]
        mean, variance = (value.astype(jnp.float32) for value in held)
        learns = self.is_mutable_collection(FOLLOWED) and not self.is_initializing()
        if self.follow and learns:
            mean, variance = self._of_batch(x.astype(jnp.float32), mean, variance)
        normed = (x.astype(jnp.float32) - mean) * jax.lax.rsqrt(variance + self.epsilon)
        return _scaled(normed, scale, bias).astype(x.dtype)

    def _of_batch(
        self, x: jax.Array, mean: jax.Array, variance: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the batch's mean and variance, and put down what the running ones become."""
        count = x.size // x.shape[-1]
        own = _channel_sums(x) / count
        spread = _channel_sums(jnp.square(x - own)) / count
        unbiased = spread * (count / max(1, count - 1))
        for name, before, now in zip(STATISTICS, (mean, variance), (own, unbiased), strict=True):
            kept = (1 - self.follow) * before + self.follow * jax.lax.stop_gradient(now)
            self.put_variable(FOLLOWED, name, kept)
        return own, spread


@jax.custom_vjp
def _scaled(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Return x [..., C] * scale [C] + bias [C]."""
    return x * scale + bias


def _scaled_forward(x: jax.Array, scale: jax.Array, bias: jax.Array) -> tuple:
    return x * scale + bias, (x, scale)


def _scaled_backward(kept: tuple, to_y: jax.Array) -> tuple:
    x, scale = kept
    return to_y * scale, _channel_sums(to_y * x), _channel_sums(to_y)


def _channel_sums(values: jax.Array) -> jax.Array:
    """Return the sum [C] of values [N, ..., C] over all other axes.

    XLA adds one after the other in float32, and merges sums of sums: the barrier keeps them
    apart, so that thousands of places lose no more digits than in torch.
    """
    for axis in range(values.ndim - 2, -1, -1):
        values = jax.lax.optimization_barrier(values.sum(axis))
    return values


_scaled.defvjp(_scaled_forward, _scaled_backward)


class ConvUnit(nn.Module):
    """A convolution, its batch norm and an activation.

    Args:
        convolution: the fields of `Convolution`, but for its dtypes.
        epsilon: of the norm; None for no norm.
        activation: a Hugging Face activation name; "" for none.
        follow: as for `BatchNorm`.
        dtype: what is computed in; `param_dtype` is what parameters are stored in.
    """

    convolution: Any
    epsilon: float | None = 1e-5
    activation: str = ""
    dtype: str = "float32"
    param_dtype: str = "float32"
    follow: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `x` [N, H, W, C] to [N, H', W', features]."""
        fields = {**self.convolution, "dtype": self.dtype, "param_dtype": self.param_dtype}
        x = Convolution(**fields, name="convolution")(x)
        if self.epsilon is not None:
            x = BatchNorm(self.epsilon, self.param_dtype, self.follow, name="norm")(x)
        return activation(self.activation)(x) if self.activation else x
