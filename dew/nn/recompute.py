"""Cheap functions that the backward pass computes again instead of keeping what they made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with only its arguments kept for the backward pass.

    For norms, activations and attention weights: what they keep otherwise is several times their
    arguments, is written and read once a layer by the scan, and costs more than the arithmetic.
    """
    # The arguments come out of a scan's stacked values, which nothing can merge with anyway.
    return jax.checkpoint(function, prevent_cse=False)
