"""Adapters that begin with factors of the kernel, which is then kept without their product."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

STARTS = ("uniform", "random", "gaussian", "pissa", "olora")


def taken(
    start: str,
    kernel: jax.Array,
    real: jax.Array,
    scales: jax.Array,
    axes: int,
    *,
    stacked: bool,
) -> tuple[dict[str, Any], jax.Array]:
    """Return a and b out of a kernel's factors, and the kernel without their product.

    Args:
        start: "pissa" or "olora".
        kernel: [*in, *out], or with `stacked` [layers, *in, *out].
        real: bool [R] or [layers, R], which columns of `a` there are.
        scales: float32 [layers], or of one element.
        axes: how many *in has.
        stacked: whether the first axis counts layers.
    """
    lead = kernel.shape[:1] if stacked else ()
    shape = kernel.shape[len(lead) :]
    inputs, outputs = shape[:axes], shape[axes:]
    wide = jnp.asarray(kernel, jnp.float32).reshape(-1, math.prod(inputs), math.prod(outputs))
    kept = real.reshape(len(wide), -1)
    rank = min(kept.shape[1], *wide.shape[1:])
    left, right = (pissa if start == "pissa" else olora)(wide, rank, scales)
    missing = kept.shape[1] - rank
    left = jnp.pad(left, ((0, 0), (0, 0), (0, missing))) * kept[:, None, :]
    right = jnp.pad(right, ((0, 0), (0, missing), (0, 0))) * kept[:, :, None]
    rest = wide - scales[:, None, None] * (left @ right)
    leaf = {
        "a": left.reshape(*lead, *inputs, -1),
        "b": right.reshape(*lead, kept.shape[1], *outputs),
    }
    return leaf, rest.reshape(kernel.shape).astype(kernel.dtype)


def pissa(kernels: jax.Array, rank: int, scales: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return a [N, in, R] and b [N, R, out] of the largest singular values, their product scaled.

    Args:
        kernels: float32 [N, in, out].
        rank: R.
        scales: [N], of each product; 0 where there is none.

    Source: Meng et al. 2024, arXiv:2404.02948.
    """
    left, values, right = jnp.linalg.svd(kernels, full_matrices=False)
    roots = jnp.sqrt(values[:, :rank] / jnp.where(scales == 0, 1.0, scales)[:, None])
    return left[:, :, :rank] * roots[:, None, :], roots[:, :, None] * right[:, :rank]


def olora(kernels: jax.Array, rank: int, scales: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return a and b as `pissa` does, of the QR factors of the kernel as torch stores it.

    Source: Büyükakyüz 2024, arXiv:2406.01775; peft 0.21, which leaves the scale out.
    """
    del scales
    q, r = jnp.linalg.qr(kernels.transpose(0, 2, 1))
    return r[:, :rank].transpose(0, 2, 1), q[:, :, :rank].transpose(0, 2, 1)
