"""Activation functions by the names that Hugging Face configs use."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dew.errors import UnknownName, nearest


def gelu_erf(x: jax.Array) -> jax.Array:
    """Return x Φ(x), the exact GELU of Hendrycks and Gimpel, arXiv:1606.08415."""
    return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: jax.Array) -> jax.Array:
    """Return the tanh approximation of GELU from section 2 of arXiv:1606.08415."""
    return jax.nn.gelu(x, approximate=True)


def gelu_sigmoid(x: jax.Array) -> jax.Array:
    """Return x σ(1.702 x), the sigmoid approximation of GELU from arXiv:1606.08415."""
    return x * jax.nn.sigmoid(1.702 * x)


def relu_squared(x: jax.Array) -> jax.Array:
    """Return max(x, 0)², from So et al. 2021, arXiv:2109.08668."""
    return jnp.square(jax.nn.relu(x))


def mish(x: jax.Array) -> jax.Array:
    """Return x tanh(softplus(x)), from Misra 2019, arXiv:1908.08681."""
    return x * jnp.tanh(jax.nn.softplus(x))


def gelu_clipped(x: jax.Array) -> jax.Array:
    """Return the exact GELU cut to [-10, 10]."""
    return jnp.clip(gelu_erf(x), -10.0, 10.0)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": gelu_erf,
    "gelu_python": gelu_erf,
    "gelu_10": gelu_clipped,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_accurate": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_python_tanh": gelu_tanh,
    "quick_gelu": gelu_sigmoid,
    "hardswish": jax.nn.hard_swish,
    "leaky_relu": jax.nn.leaky_relu,
    "linear": lambda x: x,
    "mish": mish,
    "relu": jax.nn.relu,
    "relu2": relu_squared,
    "relu6": jax.nn.relu6,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}
"""Name to function. `gelu` is the exact form; the `_new`, `_fast` and `_tanh` ones are not."""


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """Return the function that a config calls `name`.

    Raises:
        UnknownName: no such activation; the message lists the known ones.
    """
    if name not in ACTIVATIONS:
        raise UnknownName(
            f"activation {name!a:.200} is not known{nearest(name, ACTIVATIONS)}"
            f" Known: {', '.join(sorted(ACTIVATIONS))}."
        )
    return ACTIVATIONS[name]
