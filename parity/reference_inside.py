"""What torch's modules read and give inside one run of a model, in the order of events."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from parity.inputs import Inputs
from parity.reference import as_stored, outputs

READ, GIVEN = "input", "output"


def event(side: str, module: str) -> str:
    """Return what names one side of a module."""
    return f"{side} of {module}"


def parted(name: str) -> tuple[str, str]:
    """Return the side and the module of an event's name."""
    side, module = name.split(" of ", 1)
    return side, module


def events_inside(model: Any, inputs: Inputs, modules: Collection[str]) -> dict[str, np.ndarray]:
    """Return what modules of a torch model read and gave at their last calls.

    Args:
        model: from `Checkpoint.model`; its precision is that of the arrays.
        inputs: by the names of its forward.
        modules: names of the modules to watch; those that it has not are left out.

    Returns:
        The arrays by their events, in the order in which they came to be.
    """
    found: dict[str, np.ndarray] = {}

    def keep(name: str, side: str, values: Any) -> None:
        tensor = next((part for part in _parts(values) if _is_floating(part)), None)
        if tensor is not None:
            # Layers that share their weights are one module, called more than once.
            found.pop(event(side, name), None)
            found[event(side, name)] = tensor.detach().cpu().numpy().copy()

    def before(name: str) -> Any:
        return lambda _, args, kwargs: keep(name, READ, (*args, *kwargs.values()))

    def behind(name: str) -> Any:
        return lambda _, args, result: keep(name, GIVEN, result)

    hooks = []
    for name, module in model.named_modules():
        if name in modules:
            hooks.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
            hooks.append(module.register_forward_hook(behind(name)))
    try:
        outputs(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def called_modules(model: Any) -> set[str]:
    """Return the names of the modules that a run calls; lists of modules are never called."""
    import torch

    lists = (torch.nn.ModuleList, torch.nn.ModuleDict)
    return {name for name, module in model.named_modules() if not isinstance(module, lists)}


def live_names(model: Any) -> dict[str, str]:
    """Return the name in the model of each tensor of the files, where it is one tensor in both."""
    found = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        stored = as_stored(model, {name: tensor})
        if len(stored) == 1:
            found[next(iter(stored))] = name
    return found


def _parts(values: Any) -> tuple[Any, ...]:
    if isinstance(values, tuple | list):
        return tuple(values)
    return tuple(values.values()) if isinstance(values, Mapping) else (values,)


def _is_floating(value: Any) -> bool:
    return hasattr(value, "is_floating_point") and value.is_floating_point() and value.ndim > 0
