"""Running a traced graph on JAX arrays: pure, and so ready for `jit`, `grad` and `vmap`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bridges.torch.graph import Graph, Node, Ref, references
from bridges.torch.ops import operators
from bridges.torch.outputs import assembled
from dew.errors import InputRefused, listed

# These read boolean masks as the places where they hold.
_MASKED = ("aten.index.Tensor", "aten._unsafe_index.Tensor", "aten.index_put.default")


class UnknownOperator(InputRefused):
    """A graph with operators that no function here computes; all are named."""


class Program:
    """A graph that is ready to run.

    Args:
        graph: the computation.
        constants: the values that it brings itself, by name.

    Raises:
        UnknownOperator: operators without a function, each with its count and where it is used.
    """

    def __init__(self, graph: Graph, constants: Mapping[str, Any]):
        self.graph = graph
        self.constants = constants
        self._table = operators()
        _check_known_operators(graph)
        self.draws = any("key" in self._table[node.op].needs for node in graph.nodes)
        self._folded = self._shape_deciders()
        self._ends = self._last_reads()

    def run(
        self,
        variables: Mapping[str, Mapping[str, Any]],
        inputs: Mapping[str, Any],
        key: jax.Array | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Return the outputs, put together as the module's, and the buffers that it changed.

        Args:
            variables: `params` and `buffers` by torch's names.
            inputs: values by the names of the graph's inputs.
            key: what draws come from; it may be None where the graph has none.

        Raises:
            InputRefused: a shape or a place depends on a value that is not known before the run,
                or the graph draws and there is no key.
        """
        graph = self.graph
        env: dict[str, Any] = {**self.constants, **inputs}
        env |= {name: variables["params"][path] for name, path in graph.params.items()}
        env |= {name: variables["buffers"][path] for name, path in graph.buffers.items()}
        for number, node in enumerate(graph.nodes):
            env[node.name] = self._applied(node, env, key, number)
            for name in self._ends[number]:
                del env[name]
        outputs = [_filled(out, env) for out in graph.outputs]
        changed = {name: env[ref.name] for name, ref in graph.mutations.items()}
        return assembled(graph.structure, iter(outputs)), changed

    def _applied(self, node: Node, env: Mapping[str, Any], key: Any, number: int) -> Any:
        entry = self._table[node.op]
        args, kwargs = _filled(node.args, env), _filled(dict(node.kwargs), env)
        _check_values(node, entry.concrete, args, kwargs)
        if "dtype" in entry.needs and kwargs.get("dtype") is None:
            kwargs["dtype"] = node.dtype
        if "key" in entry.needs:
            if key is None:
                raise InputRefused(f"{node.op} in {node.where} draws at random: pass key=")
            kwargs["key"] = jax.random.fold_in(key, number)
        try:
            if node.name in self._folded and not _traced((args, kwargs)):
                with jax.ensure_compile_time_eval():
                    return entry.function(*args, **kwargs)
            return entry.function(*args, **kwargs)
        except Exception as error:
            error.add_note(f"in {node.op} ({node.name}), {node.where or 'the module'}")
            raise

    def _shape_deciders(self) -> frozenset[str]:
        """Return the nodes whose values a later one has to know when it is traced."""
        wanted: set[str] = set()
        for node in reversed(self.graph.nodes):
            if self._table[node.op].concrete or node.name in wanted:
                wanted |= set(references((node.args, node.kwargs)))
            elif node.op in _MASKED:
                wanted |= set(references(node.args[1]))
            elif node.op.startswith("python."):
                wanted |= set(references((node.args, node.kwargs)))
        return frozenset(wanted)

    def _last_reads(self) -> list[tuple[str, ...]]:
        """Return, for each node, the values that no later one reads."""
        graph = self.graph
        computed = {node.name for node in graph.nodes}
        kept = set(references((graph.outputs, dict(graph.mutations))))
        ends: list[tuple[str, ...]] = []
        for node in reversed(graph.nodes):
            names = {node.name, *references((node.args, node.kwargs))} & computed
            ends.append(tuple(names - kept))
            kept |= names
        return ends[::-1]


def _check_known_operators(graph: Graph) -> None:
    table = operators()
    unknown = [node for node in graph.nodes if node.op not in table]
    if not unknown:
        return
    first = {node.op: node.where for node in reversed(unknown)}
    lines = [
        f"{op} ({count} times, first in {first[op] or 'the module'})"
        for op, count in Counter(node.op for node in unknown).most_common()
    ]
    raise UnknownOperator(
        listed(f"{len(lines)} operators of this module have no JAX form yet:", lines)
    )


def _check_values(node: Node, concrete: bool, args: Any, kwargs: Any) -> None:
    unknown = False
    if concrete:
        unknown = _traced((args, kwargs))
    elif node.op in _MASKED:
        masks = [part for part in args[1] if part is not None and part.dtype == jnp.bool_]
        filled = node.op == _MASKED[2] and np.size(args[2]) == 1 and len(args[1]) == 1
        unknown = not filled and _traced(masks)
    if unknown:
        raise InputRefused(
            f"{node.op} in {node.where or 'the module'} needs its operands' values before the "
            "run, since they decide a shape; here they are computed from inputs or weights. If "
            "they come from an input alone, name it in static=(...)."
        )


def _traced(tree: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def _filled(value: Any, env: Mapping[str, Any]) -> Any:
    if isinstance(value, Ref):
        return env[value.name]
    if isinstance(value, list | tuple):
        return [_filled(part, env) for part in value]
    if isinstance(value, Mapping):
        return {name: _filled(part, env) for name, part in value.items()}
    return value
