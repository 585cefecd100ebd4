"""A linear map over one or more axes, with a low-rank adapter where one is given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.nn.quantized import Quantized, narrow_linear

INIT_DEVIATION = 0.02
LONG_SUM = 1024
SUM_PART = 384
MANY_ROWS = 64
"""On CPU, products over more inputs than `LONG_SUM` are added up in parts of about `SUM_PART`:
XLA's matrix product adds in one long chain there, with half as much error again as torch's, and for
few rows twice as much or more. From `MANY_ROWS` rows on XLA joins the parts into one chain again,
and cutting only costs a third of the product's time."""


class Pieces(NamedTuple):
    """A kernel [in, features] cut along its inputs ahead of time, so that no call copies a part.

    Args:
        parts: whose products are added up, each [some inputs, features].
    """

    parts: tuple[jax.Array, ...]


def in_pieces(kernel: Any) -> Any:
    """Return a kernel [in, features] as `linear` cuts it for few rows on CPU, or as it is."""
    if len(kernel) <= LONG_SUM or jax.default_backend() != "cpu":
        return kernel
    return Pieces(tuple(kernel[i:j] for i, j in _bounds(len(kernel))))


class Dense(nn.Module):
    """y = x kernel + bias, contracting the last `inputs` axes of x.

    The kernel is [*in, *features]. If the collection `lora` holds `a` [*in, R] and
    `b` [R, *features] for this module, `adapter_scale` (x a) b is added: the low-rank path of
    Hu et al. 2021, arXiv:2106.09685, with adapter_scale = alpha / R. What else the collection may
    hold is in `low_rank`.
    """

    features: tuple[int, ...]
    inputs: int = 1
    use_bias: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"
    adapter_scale: float = 1.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `x` [..., *in] to [..., *features]."""
        shape = x.shape[x.ndim - self.inputs :]
        kernel = self._kernel((*shape, *self.features))
        x = x.astype(self.dtype)
        y: Any = product(x, kernel, self.inputs)
        if self.has_variable("lora", "a"):
            leaf = {
                name: self.get_variable("lora", name)
                for name in LEAVES
                if self.has_variable("lora", name)
            }
            y = low_rank(x, y, kernel, leaf, self.inputs, self.adapter_scale)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, self.features, self.param_dtype)
            y = y + bias.astype(self.dtype)
        return y

    def _kernel(self, shape: tuple[int, ...]) -> Any:
        held = self.get_variable("params", "kernel")
        if isinstance(held, Quantized | Pieces):
            return held
        init = nn.initializers.normal(INIT_DEVIATION)
        return self.param("kernel", init, shape, self.param_dtype)


LEAVES = ("a", "b", "scale", "magnitude", "adapted", "seed", "keep")


def low_rank(
    x: jax.Array,
    y: jax.Array,
    kernel: Any,
    leaf: Mapping[str, jax.Array],
    inputs: int,
    scale: float,
) -> jax.Array:
    """Return the output of a linear map with its adapter.

    Args:
        x: [..., *in].
        y: x times the kernel, [..., *features].
        kernel: [*in, *features], an array or stored narrow.
        leaf: `a` [*in, R] and `b` [R, *features]; where there are any, `scale`, in the place of
            the argument; `magnitude` [*features], the trained length of each output's weights
            (DoRA), and `adapted`, whether this layer has one; `seed`, a uint32, and `keep`: the
            adapter sees the share `keep` of the inputs, divided by it.
        inputs: how many axes *in has.
        scale: of the product.

    Source: Liu et al. 2024, arXiv:2402.09353, for the magnitudes: the length they divide by takes
    no gradient, as in peft 0.21.
    """
    seen = x
    if "seed" in leaf:
        kept = jax.random.bernoulli(jax.random.key(leaf["seed"]), leaf["keep"], x.shape)
        seen = jnp.where(kept, x / leaf["keep"].astype(x.dtype), jnp.zeros_like(x))
    factor: Any = leaf["scale"].astype(x.dtype) if "scale" in leaf else scale
    low: Any = linear(linear(seen, leaf["a"], inputs), leaf["b"], 1)
    low = factor * low
    if "magnitude" not in leaf:
        return y + low
    share = magnitude_share(kernel, leaf, inputs, scale).astype(x.dtype)
    base: Any = product(seen, kernel, inputs) if "seed" in leaf else y
    out = y + (share - 1) * base + share * low
    return jnp.where(leaf["adapted"], out, y) if "adapted" in leaf else out


def magnitude_share(
    kernel: Any, leaf: Mapping[str, jax.Array], inputs: int, scale: float
) -> jax.Array:
    """Return each output's magnitude over the length of its adapted weights, float32 [*features].

    The arguments are those of `low_rank`.
    """
    low = jnp.tensordot(leaf["a"], leaf["b"], axes=1)
    length = output_lengths(kernel + leaf.get("scale", scale) * low, inputs)
    return leaf["magnitude"] / jax.lax.stop_gradient(length)


def output_lengths(kernel: jax.Array, inputs: int) -> jax.Array:
    """Return the Euclidean length of each output's weights, float32 [*features]."""
    wide = kernel.astype(jnp.float32)
    return jnp.sqrt(jnp.sum(jnp.square(wide), axis=tuple(range(inputs))))


def product(x: jax.Array, kernel: Any, inputs: int) -> jax.Array:
    """Return `linear` of a kernel that is an array, in pieces or stored narrow."""
    if isinstance(kernel, Pieces):
        rows = _rows(x, inputs)
        y = _added(rows, [part.astype(x.dtype) for part in kernel.parts])
        return y.reshape(*x.shape[: x.ndim - inputs], -1)
    if isinstance(kernel, Quantized):
        return narrow_linear(x, kernel, partial(linear, inputs=inputs))
    out: Any = linear(x, kernel, inputs)
    return out


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def linear(x: jax.Array, kernel: jax.Array, inputs: int) -> jax.Array:
    """Return x [..., *in] times kernel [*in, *out] over `inputs` axes, in the dtype of x.

    The backward pass is told its operands, x and the kernel as they came: what a reshape or a
    cast makes of them would be kept once more for every layer of a scan.
    """
    rows, matrix = _rows(x, inputs), _matrix(kernel, inputs, x.dtype)
    return _in_parts(rows, matrix).reshape(*x.shape[: x.ndim - inputs], *kernel.shape[inputs:])


def _linear_forward(x: jax.Array, kernel: jax.Array, inputs: int):
    return linear(x, kernel, inputs), (x, kernel)


def _linear_backward(inputs: int, operands: tuple[jax.Array, jax.Array], gradient: jax.Array):
    # The sums here run over the outputs and over the rows; cutting the kernel's gradient by its
    # inputs would only copy it.
    x, kernel = operands
    matrix = _matrix(kernel, inputs, x.dtype)
    slope = gradient.reshape(-1, matrix.shape[1])
    to_x = slope @ matrix.T
    to_kernel = _rows(x, inputs).T @ slope
    return to_x.reshape(x.shape), to_kernel.reshape(kernel.shape).astype(kernel.dtype)


linear.defvjp(_linear_forward, _linear_backward)


def _in_parts(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    length = len(matrix)
    if length <= LONG_SUM or len(rows) >= MANY_ROWS or jax.default_backend() != "cpu":
        return rows @ matrix
    return _added(rows, [matrix[i:j] for i, j in _bounds(length)])


def _bounds(length: int) -> list[tuple[int, int]]:
    parts = round(length / SUM_PART)
    return list(pairwise(length * part // parts for part in range(parts + 1)))


def _added(rows: jax.Array, parts: Sequence[jax.Array]) -> jax.Array:
    ends = list(accumulate(map(len, parts), initial=0))
    products = (rows[:, i:j] @ part for (i, j), part in zip(pairwise(ends), parts, strict=True))
    return reduce(jnp.add, products)


def _rows(x: jax.Array, inputs: int) -> jax.Array:
    # One row axis: over several, XLA's CPU backend transposes both sides of the weights'
    # gradient, a quarter of the backward pass.
    return x.reshape(-1, math.prod(x.shape[x.ndim - inputs :]))


def _matrix(kernel: jax.Array, inputs: int, dtype: jax.typing.DTypeLike) -> jax.Array:
    return jnp.asarray(kernel).reshape(math.prod(kernel.shape[:inputs]), -1).astype(dtype)
