"""What dew's modules read and give inside one run of a model, by their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen as nn

from parity.inputs import Inputs
from parity.subject import Subject

COLLECTION, READ, GIVEN = "intermediates", "seen_read", "seen_given"


class Seen(NamedTuple):
    """What one module read and gave at its last call; None where that was no array of floats."""

    read: np.ndarray | None
    given: np.ndarray | None


def seen_inside(subject: Subject, inputs: Inputs) -> dict[str, Seen]:
    """Return what each module of a model read and gave.

    Args:
        subject: whose model runs.
        inputs: by the names that the model takes.

    Returns:
        Of a native model by the module's path, as in `layers/attention/query`, the layers stacked
        along a first axis. Of a traced one by torch's name, and only what each gave.
    """
    return _seen_traced(subject, inputs) if subject.traced else _seen_native(subject, inputs)


def _seen_native(subject: Subject, inputs: Inputs) -> dict[str, Seen]:
    from dew.inference.model_inputs import checked_inputs

    bundle = subject.bundle
    given = checked_inputs(bundle.model, inputs)
    found: dict[str, dict[str, np.ndarray]] = {}
    for path, name, values in _marks(_recorded(bundle.model, bundle.variables, given)):
        found.setdefault(path, {})[name] = np.asarray(values[-1])
    return {path: Seen(parts.get(READ), parts.get(GIVEN)) for path, parts in found.items()}


@partial(jax.jit, static_argnums=0)
def _recorded(model: Any, variables: Any, inputs: Mapping[str, Any]) -> Any:
    def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        _keep(context.module, READ, args)
        found = call(*args, **kwargs)
        _keep(context.module, GIVEN, found)
        return found

    with nn.intercept_methods(note):
        _, state = model.apply(variables, **inputs, method="outputs", mutable=[COLLECTION])
    return state.get(COLLECTION, {})


def _keep(module: nn.Module, name: str, values: Any) -> None:
    first = values[0] if isinstance(values, tuple) and values else values
    if isinstance(first, jax.Array) and jax.numpy.issubdtype(first.dtype, jax.numpy.floating):
        module.sow(COLLECTION, name, first)


def _marks(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _marks(value, f"{prefix}{name}/")
        else:
            yield prefix.removesuffix("/"), name, value


def _seen_traced(subject: Subject, inputs: Inputs) -> dict[str, Seen]:
    """Run the graph up to the last operator of each module."""
    from bridges.torch.graph import Ref, Structure
    from bridges.torch.run import Program

    bundle = subject.bundle
    program, values = bundle.model.program(**inputs)
    graph = program.graph
    last: dict[str, str] = {}
    for node in graph.nodes:
        module = node.where.split(", ")[0]
        inner = module.split(".") if module and " " not in module else []
        last |= {".".join(inner[: count + 1]): node.name for count in range(len(inner))}
    named = dataclasses.replace(
        graph,
        outputs=tuple(Ref(name) for name in last.values()),
        structure=Structure("dict", tuple(last), tuple(Structure("leaf") for _ in last)),
        mutations={},
    )
    run = jax.jit(Program(named, program.constants).run)
    found, _ = run(bundle.variables, values)
    return {
        name: Seen(None, np.asarray(value))
        for name, value in found.items()
        if hasattr(value, "dtype") and jax.numpy.issubdtype(value.dtype, jax.numpy.floating)
    }
