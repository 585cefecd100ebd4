"""Muon as torch computes it: momentum made orthogonal."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dew.training.arguments import Argument
from dew.training.views import View, views_of

ADJUSTMENTS = ("original", "match_rms_adamw", "spectral_unclamped")
ARGUMENTS = {
    "momentum": Argument("number", 0.95, low=0),
    "nesterov": Argument("switch", True),
    "ns_coefficients": Argument("numbers", (3.4445, -4.7750, 2.0315), count=3),
    "eps": Argument("number", 1e-7, low=0),
    "ns_steps": Argument("integer", 5, low=0, high=99),
    "adjust_lr_fn": Argument("text", "original", choices=ADJUSTMENTS),
}


def hidden_or_not(params: Any) -> Any:
    """Return "muon" or "adam" for every leaf: "muon" for two-axis weights inside the network.

    Source: torch 2.14 `torch.optim.Muon`, which takes matrices only and leaves biases, embeddings
    and heads to AdamW.
    """
    return jax.tree.map(lambda view: "muon" if view.hidden else "adam", views_of(params))


def scale_by_muon(
    *,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
    eps: float = 1e-7,
    ns_steps: int = 5,
    adjust_lr_fn: str = "original",
) -> optax.GradientTransformation:
    """Return the direction of Muon, before rate and weight decay.

    Each layer of a stack is made orthogonal by itself, and a map to heads as one matrix.

    Args:
        momentum: decay of the moving average of gradients.
        nesterov: mix the gradient into the average once more.
        ns_coefficients: of the Newton-Schulz polynomial.
        eps: the least norm that a matrix is divided by.
        ns_steps: Newton-Schulz iterations, in bfloat16.
        adjust_lr_fn: how the size of a matrix scales its rate: "original" by
            sqrt(max(1, out / in)), "match_rms_adamw" by 0.2 sqrt(max(out, in)) so that a rate for
            AdamW fits, "spectral_unclamped" by sqrt(out / in).

    Source: torch 2.14 `torch.optim.Muon`; Jordan 2024, kellerjordan.github.io/posts/muon.
    `optax.contrib.muon` iterates in float32, and corrects the average for its start.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        trace = jax.tree.map(lambda g, m: _mixed(m, g, 1.0 - momentum), updates, state.trace)
        if nesterov:
            mixed = jax.tree.map(lambda g, m: _mixed(g, m, momentum), updates, trace)
        else:
            mixed = trace

        def direction(view: View, leaf: jax.Array) -> jax.Array:
            # As torch stores it, [out, in]: rounding tells a square from its transposition.
            matrix = _turned(view, leaf.reshape(view.shape))
            matrix = _turned(view, orthogonal(matrix, ns_coefficients, ns_steps, eps))
            size = _adjusted(adjust_lr_fn, *view.outputs_inputs)
            return size * matrix.astype(leaf.dtype).reshape(leaf.shape)

        return jax.tree.map(direction, views_of(mixed), mixed), optax.TraceState(trace)

    return optax.GradientTransformation(
        lambda params: optax.TraceState(jax.tree.map(jnp.zeros_like, params)), update
    )


def orthogonal(
    matrix: jax.Array, coefficients: tuple[float, float, float], steps: int, eps: float
) -> jax.Array:
    """Return U V^T, nearly, of the matrices [..., m, n] with the singular vectors U and V.

    float32 values rounded to bfloat16 line by line, as torch's `addmm` does.
    """
    a, b, c = coefficients
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = _rounded(jnp.swapaxes(matrix, -1, -2) if tall else matrix)
    norm = _rounded(jnp.sqrt(jnp.sum(x * x, axis=(-2, -1), keepdims=True)))
    x = _rounded(x / jnp.maximum(norm, _rounded(jnp.float32(eps))))
    for _ in range(steps):
        gram = _rounded(_product(x, jnp.swapaxes(x, -1, -2)))
        poly = _rounded(b * gram + c * _product(gram, gram))
        x = _rounded(a * x + _product(poly, x))
    return jnp.swapaxes(x, -1, -2) if tall else x


def _mixed(first: jax.Array, second: jax.Array, share: float) -> jax.Array:
    """Return first (1 - share) + second share, from the nearer end as torch's `lerp`."""
    if share < 0.5:
        return first + share * (second - first)
    return second - (1.0 - share) * (second - first)


def _turned(view: View, matrix: jax.Array) -> jax.Array:
    return matrix if view.flipped else jnp.swapaxes(matrix, -1, -2)


def _rounded(value: jax.Array) -> jax.Array:
    # A cast to bfloat16 and back is one that XLA may leave out.
    return jax.lax.reduce_precision(value.astype(jnp.float32), exponent_bits=8, mantissa_bits=7)


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    narrow = left.astype(jnp.bfloat16), right.astype(jnp.bfloat16)
    return jnp.matmul(*narrow, preferred_element_type=jnp.float32)


def _adjusted(name: str, outputs: int, inputs: int) -> float:
    if name == "match_rms_adamw":
        return 0.2 * math.sqrt(max(outputs, inputs))
    ratio = outputs / inputs
    return math.sqrt(ratio if name == "spectral_unclamped" else max(1.0, ratio))
