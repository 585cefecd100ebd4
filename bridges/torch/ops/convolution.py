"""Convolutions, forward and transposed, in torch's layout [N, C, ...]."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bridges.torch.ops.operator import operator, spread
from dew.nn.convolution import depthwise


@operator("convolution.default")
def _convolution(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> jax.Array:
    count = weight.ndim - 2
    single = x.ndim == count + 1
    x = x[None] if single else x
    stride, padding, dilation = (spread(part, count) for part in (stride, padding, dilation))
    if transposed:
        y = _transposed(x, weight, stride, padding, dilation, spread(output_padding, count), groups)
    elif groups == 1 and set(weight.shape[2:]) == {1} and set(padding) == {0}:
        y = _pointwise(x, weight, stride)
    elif _by_channel(x, weight, groups) and len(set(stride)) == len(set(dilation)) == 1:
        y = _depthwise(x, weight, stride[0], padding, dilation[0])
    else:
        y = jax.lax.conv_general_dilated(
            x,
            weight,
            stride,
            [(part, part) for part in padding],
            rhs_dilation=dilation,
            dimension_numbers=_layout(count),
            feature_group_count=groups,
        )
    if bias is not None:
        y = y + bias.reshape(-1, *([1] * count))
    return y[0] if single else y


def _layout(count: int) -> tuple[str, str, str]:
    space = "DHW"[-count:]
    return f"NC{space}", f"OI{space}", f"NC{space}"


def _pointwise(x: jax.Array, weight: jax.Array, stride: tuple[int, ...]) -> jax.Array:
    """A kernel of one element is a matrix product, at a product's speed."""
    if set(stride) != {1}:
        x = x[(slice(None), slice(None), *(slice(None, None, step) for step in stride))]
    matrix = weight.reshape(weight.shape[:2])
    rows = x.reshape(*x.shape[:2], -1)
    return (matrix @ rows).reshape(x.shape[0], -1, *x.shape[2:])


def _by_channel(x: jax.Array, weight: jax.Array, groups: int) -> bool:
    alone = groups == x.shape[1] == weight.shape[0] > 1 and x.ndim < 5
    return alone and jnp.issubdtype(x.dtype, jnp.floating)


def _depthwise(
    x: jax.Array, weight: jax.Array, stride: int, padding: tuple[int, ...], dilation: int
) -> jax.Array:
    """Each channel with a kernel of its own, as Mamba's and MobileNet's.

    XLA's gradient of such a kernel holds one of every pair of channels, 2 GB for 8,192 of them.
    """
    flat = x.ndim == 3
    x, weight = (part[:, :, None] if flat else part for part in (x, weight))
    around = ((0, 0), (padding[0],) * 2) if flat else tuple((part, part) for part in padding)
    # Half precision is summed in float32, as torch sums it.
    wide = jnp.promote_types(x.dtype, jnp.float32)
    kernel = jnp.transpose(weight[:, 0], (1, 2, 0)).astype(wide)
    pixels = jnp.transpose(x, (0, 2, 3, 1)).astype(wide)
    y: Any = depthwise(pixels, kernel, stride, around, dilation)
    y = jnp.transpose(y, (0, 3, 1, 2)).astype(x.dtype)
    return y[:, :, 0] if flat else y


def _transposed(
    x: jax.Array,
    weight: jax.Array,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    extra: tuple[int, ...],
    groups: int,
) -> jax.Array:
    """The gradient of a convolution by its input: torch's kernel is [in, out / groups, ...]."""
    count = weight.ndim - 2
    inputs, outputs = weight.shape[:2]
    kernel = weight.reshape(groups, inputs // groups, outputs, *weight.shape[2:])
    kernel = jnp.swapaxes(kernel, 1, 2).reshape(groups * outputs, -1, *weight.shape[2:])
    kernel = jnp.flip(kernel, range(2, 2 + count))
    reach = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
    widths = [
        (far - pad, far - pad + more) for far, pad, more in zip(reach, padding, extra, strict=True)
    ]
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (1,) * count,
        widths,
        lhs_dilation=stride,
        rhs_dilation=dilation,
        dimension_numbers=_layout(count),
        feature_group_count=groups,
    )


@operator("im2col.default")
def _im2col(x: jax.Array, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> jax.Array:
    kernel, dilation, padding, stride = (
        spread(part, 2) for part in (kernel_size, dilation, padding, stride)
    )
    single = x.ndim == 3
    x = x[None] if single else x
    patches = jax.lax.conv_general_dilated_patches(
        x, kernel, stride, [(part, part) for part in padding], rhs_dilation=dilation
    )
    columns = patches.reshape(*patches.shape[:2], -1)
    return columns[0] if single else columns


@operator("col2im.default")
def _col2im(
    x: jax.Array, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> jax.Array:
    # Linear, so it is the transpose of im2col.
    channels = x.shape[-2] // (kernel_size[0] * kernel_size[1])
    shape = (*x.shape[:-2], channels, *(int(part) for part in output_size))

    def unfolded(image: jax.Array) -> jax.Array:
        return _im2col(image, kernel_size, dilation, padding, stride)

    (image,) = jax.linear_transpose(unfolded, jax.ShapeDtypeStruct(shape, x.dtype))(x)
    return image
