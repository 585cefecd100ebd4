"""`from_torch`: the torch side of a traced module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from bridges.torch.export import NotExportable, numpy_of, traced_graph
from bridges.torch.graph import Graph
from bridges.torch.module import TracedModule, Tracer
from bridges.torch.run import Program


def from_torch(
    module: Any,
    example_inputs: Any,
    *,
    static: tuple[str, ...] = (),
    dynamic: bool = True,
) -> TracedModule:
    """Turn a torch module into a pure JAX function and its weights.

    The module is traced by `torch.export` in evaluation mode, and in training mode when that is
    first asked for. Its Python runs once a trace and never again. Lengths may vary between calls
    where torch finds that the module allows it; a shape that no trace covers makes a new one.

    Args:
        module: a `torch.nn.Module`; left as it is.
        example_inputs: a tuple of the arguments by position, or a dict of them by name: torch
            tensors, NumPy or JAX arrays, plain values.
        static: names of inputs whose values decide shapes, such as `image_grid_thw`: a call
            takes them as constants, and compiles once for each value.
        dynamic: whether to ask torch for lengths that may vary.

    Returns:
        The module's computation, with `variables` and `apply`.

    Raises:
        NotExportable: torch cannot follow the module; the reason and the line are named.
        UnknownOperator: operators without a JAX form; all are named.
    """
    named = isinstance(example_inputs, Mapping)
    args = () if named else tuple(example_inputs)
    kwargs = dict(example_inputs) if named else {}
    canonical = canonical_names(module)
    program = trace(module, args, kwargs, training=False, canonical=canonical, dynamic=dynamic)
    tracer = Tracer(lambda: module, canonical, {False: [program]})
    return TracedModule(tracer, variables_of(module, canonical), static=static)


def trace(
    module: Any,
    args: Any,
    inputs: Mapping[str, Any],
    *,
    training: bool,
    canonical: Mapping[str, str],
    dynamic: bool = False,
) -> Program:
    """Return the program of a module for inputs of these shapes.

    Args:
        module: the torch module.
        args: inputs by position.
        inputs: inputs by name.
        training: the mode.
        canonical: every parameter's name to the one it is kept under.
        dynamic: whether lengths may vary; where torch cannot do that, they are fixed.
    """
    args, inputs = _tensors(list(args)), _tensors(dict(inputs))
    was = module.training
    module.train(training)
    try:
        graph, constants = _attempted(module, tuple(args), inputs, dynamic)
    finally:
        module.train(was)
    params = {name: canonical.get(path, path) for name, path in graph.params.items()}
    buffers = {name: canonical.get(path, path) for name, path in graph.buffers.items()}
    renamed = Graph(**{**vars(graph), "params": params, "buffers": buffers})
    return Program(renamed, constants)


def variables_of(module: Any, canonical: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return a module's parameters and buffers as JAX arrays by torch's names."""
    params = {n: p for n, p in module.named_parameters() if canonical.get(n, n) == n}
    buffers = {n: b for n, b in module.named_buffers() if canonical.get(n, n) == n}
    return {
        "params": {name: _owned(value) for name, value in params.items()},
        "buffers": {name: _owned(value) for name, value in buffers.items()},
    }


def _owned(tensor: Any) -> Any:
    # A copy: torch may write to its own memory later.
    return jnp.array(numpy_of(tensor))


def _attempted(module: Any, args: Any, inputs: Any, dynamic: bool) -> Any:
    if dynamic:
        try:
            return traced_graph(module, args, inputs, dynamic=True)
        except Exception:
            pass
    return traced_graph(module, args, inputs, dynamic=False)


def canonical_names(module: Any) -> dict[str, str]:
    """Return every name of each parameter and buffer to the first name of the same tensor."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for pairs in (
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    ):
        for name, tensor in pairs:
            found[name] = first.setdefault(id(tensor), name)
    return found


def _tensors(value: Any) -> Any:
    import torch

    if isinstance(value, Mapping):
        return {name: _tensors(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_tensors(part) for part in value]
    if isinstance(value, torch.Tensor) or not hasattr(value, "shape"):
        return value
    if hasattr(value, "aval"):  # under jit only the shape is known, and only it matters
        value = np.zeros(value.shape, value.dtype)
    array = np.asarray(value)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 4:
        array = array.astype(np.int64)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape)).clone()


__all__ = ["NotExportable", "from_torch", "trace", "variables_of"]
