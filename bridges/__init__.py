"""The PyTorch world and dew's values, both ways. Nothing heavy is imported until it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridges.adapters import export_adapter, load_adapter
    from bridges.data.datasets import dataset
    from bridges.exporting import export
    from bridges.loading import load
    from bridges.torch.tracing import from_torch

_HOMES = {
    "load": "bridges.loading",
    "export": "bridges.exporting",
    "dataset": "bridges.data.datasets",
    "load_adapter": "bridges.adapters",
    "export_adapter": "bridges.adapters",
    "from_torch": "bridges.torch.tracing",
}

__all__ = ["dataset", "export", "export_adapter", "from_torch", "load", "load_adapter"]


def __getattr__(name: str) -> Any:
    """Return a public function, importing its module now."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bridges' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
