"""Whether a model takes the largest of numbers that tie: torch then chooses as it happens to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLOSE = 1e-5
"""Of the largest number: what rounding may put in either order."""
MASKED = 1e30
"""What masks add to or take from a number is at least this large."""


def chooses_among_ties(module: Any, inputs: Mapping[str, Any]) -> bool:
    """Return whether some `topk` of a forward pass leaves out a number that ties with a taken one.

    Which of them torch takes is left open by its documentation, so that what comes after cannot be
    compared.

    Args:
        module: the torch module.
        inputs: its inputs by name.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, call, types, args=(), kwargs=None):
            if call is torch.ops.aten.topk.default:
                found.append(_tie_at_the_cut(*args[:4]))
            return call(*args, **(kwargs or {}))

    with torch.no_grad(), Watch():
        module(**inputs)
    return any(found)


def _tie_at_the_cut(x: Any, k: int, dim: int = -1, largest: bool = True) -> bool:
    if k >= x.shape[dim]:
        return False
    ordered = x.double().sort(dim, descending=largest).values
    last, next_one = ordered.select(dim, k - 1), ordered.select(dim, k)
    both = next_one.abs() < MASKED
    scale = x[x.abs() < MASKED].abs().max() if both.any() else 0.0
    return bool(((last - next_one).abs()[both] <= CLOSE * scale).any())
