"""A linear map over one or more axes, with a low-rank adapter where one is given."""

from __future__ import annotations

import math
from functools import reduce
from itertools import pairwise

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
        outer = x.shape[: x.ndim - self.inputs]
        # One row axis: over several, XLA's CPU backend transposes both sides of the weights'
        # gradient, a quarter of the backward pass.
        flat = x.reshape(-1, math.prod(shape)).astype(self.dtype)
        y = summed_in_parts(flat, _flat(kernel, math.prod(shape), self.dtype))
        if self.has_variable("lora", "a"):
            a, b = self.get_variable("lora", "a"), self.get_variable("lora", "b")
            low = flat @ _flat(a, math.prod(shape), self.dtype)
            y = y + self.adapter_scale * (low @ _flat(b, a.shape[-1], self.dtype))
        y = y.reshape(*outer, *self.features)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, self.features, self.param_dtype)
            y = y + bias.astype(self.dtype)
        return y


@jax.custom_vjp
def summed_in_parts(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return x [M, K] times kernel [K, N], a long sum in parts where that is more exact."""
    length = kernel.shape[0]
    if length <= LONG_SUM or jax.default_backend() != "cpu":
        return x @ kernel
    parts = round(length / SUM_PART)
    bounds = [length * part // parts for part in range(parts + 1)]
    products = [x[:, start:stop] @ kernel[start:stop] for start, stop in pairwise(bounds)]
    return reduce(jnp.add, products)


def _summed_forward(x: jax.Array, kernel: jax.Array):
    return summed_in_parts(x, kernel), (x, kernel)


def _summed_backward(inputs: tuple[jax.Array, jax.Array], gradient: jax.Array):
    # The sums here run over N and M; cutting the kernel's gradient by K would only copy it.
    x, kernel = inputs
    return gradient @ kernel.T, x.T @ gradient


summed_in_parts.defvjp(_summed_forward, _summed_backward)


def _flat(kernel: jax.Array, rows: int, dtype: str) -> jax.Array:
    return jnp.asarray(kernel).reshape(rows, -1).astype(dtype)
