"""torch's operators on JAX arrays, one file a kind."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from bridges.torch.ops.operator import TABLE, Operator

_KINDS = (
    "activations",
    "attention",
    "convolution",
    "factories",
    "indexing",
    "linear_algebra",
    "normalisation",
    "pointwise",
    "pooling",
    "random",
    "reductions",
    "resizing",
    "scalars",
    "shapes",
    "sorting",
    "spectral",
)


@cache
def operators() -> dict[str, Operator]:
    """Return every operator by torch's name."""
    for kind in _KINDS:
        import_module(f"bridges.torch.ops.{kind}")
    return TABLE
