"""The PyTorch world and dew's values, both ways. Nothing heavy is imported until it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridges.adapters import export_adapter, load_adapter
    from bridges.data.datasets import dataset
    from bridges.exporting import export
    from bridges.loading import load
    from bridges.torch import optimizer_state, tensors
    from bridges.torch.loader import from_dataloader
    from bridges.torch.to_torch import to_torch
    from bridges.torch.tracing import from_torch

_HOMES = {
    "load": "bridges.loading",
    "export": "bridges.exporting",
    "dataset": "bridges.data.datasets",
    "load_adapter": "bridges.adapters",
    "export_adapter": "bridges.adapters",
    "from_dataloader": "bridges.torch.loader",
    "from_torch": "bridges.torch.tracing",
    "to_torch": "bridges.torch.to_torch",
}

_MODULES = {
    "optimizer_state": "bridges.torch.optimizer_state",
    "tensors": "bridges.torch.tensors",
}

__all__ = [
    "dataset",
    "export",
    "export_adapter",
    "from_dataloader",
    "from_torch",
    "load",
    "load_adapter",
    "optimizer_state",
    "tensors",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    """Return a public function or module, importing it now."""
    if name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'bridges' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
