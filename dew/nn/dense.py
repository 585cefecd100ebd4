"""A linear map over one or more axes, with a low-rank adapter where one is given."""

from __future__ import annotations

import math
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

INIT_DEVIATION = 0.02
LONG_SUM = 1024
SUM_PART = 384
"""On CPU, products over more inputs than `LONG_SUM` are added up in parts of about `SUM_PART`:
XLA's matrix product adds in one long chain there, whose rounding error over SmolLM2's 1536 inputs
was four times torch's in the logits; in parts it is torch's, for 1 % of the step's time."""


class Dense(nn.Module):
    """y = x kernel + bias, contracting the last `inputs` axes of x.

    The kernel is [*in, *features]. If the collection `lora` holds `a` [*in, R] and
    `b` [R, *features] for this module, `adapter_scale` (x a) b is added: the low-rank path of
    Hu et al. 2021, arXiv:2106.09685, with adapter_scale = alpha / R.
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
        init = nn.initializers.normal(INIT_DEVIATION)
        kernel = self.param("kernel", init, (*shape, *self.features), self.param_dtype)
        x = x.astype(self.dtype)
        y: Any = linear(x, kernel, self.inputs)
        if self.has_variable("lora", "a"):
            a, b = self.get_variable("lora", "a"), self.get_variable("lora", "b")
            low: Any = linear(linear(x, a, self.inputs), b, 1)
            y = y + self.adapter_scale * low
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, self.features, self.param_dtype)
            y = y + bias.astype(self.dtype)
        return y


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
    if length <= LONG_SUM or jax.default_backend() != "cpu":
        return rows @ matrix
    parts = round(length / SUM_PART)
    bounds = [length * part // parts for part in range(parts + 1)]
    return reduce(jnp.add, (rows[:, i:j] @ matrix[i:j] for i, j in pairwise(bounds)))


def _rows(x: jax.Array, inputs: int) -> jax.Array:
    # One row axis: over several, XLA's CPU backend transposes both sides of the weights'
    # gradient, a quarter of the backward pass.
    return x.reshape(-1, math.prod(x.shape[x.ndim - inputs :]))


def _matrix(kernel: jax.Array, inputs: int, dtype: jax.typing.DTypeLike) -> jax.Array:
    return jnp.asarray(kernel).reshape(math.prod(kernel.shape[:inputs]), -1).astype(dtype)
