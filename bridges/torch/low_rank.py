"""`LowRankModule`: a traced module whose adapted linear maps compute W x + scale B A x as two sums.

Next to a merged weight this spares the gradient of the whole W, and it is where the adapter's own
dropout stands, on x alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from bridges.torch.graph import Graph, Node, Ref, references
from bridges.torch.lora import WHOLE, Adapter, decomposed, lengths, summed
from bridges.torch.module import TracedModule
from bridges.torch.ops.operator import operator
from bridges.torch.run import Program
from dew.errors import InputRefused, listed

SIDES = ("A", "B")
ADAPTED_WEIGHT = "bridge.adapted_weight"
DECOMPOSED_WEIGHT = "bridge.decomposed_weight"
DECOMPOSED_SUM = "bridge.decomposed_sum"
# Which argument of an operator is the weight of a linear map, and which its input: of weights
# that lie [outputs, inputs], and of those that lie across.
_STORED = {"aten.linear.default": (1, 0)}
_ACROSS = {
    "aten.addmm.default": (2, 1),
    "aten.mm.default": (1, 0),
    "aten.matmul.default": (1, 0),
}
_TURNS = ("aten.t.default", "aten.numpy_T.default", "aten.permute.default", "aten.transpose.int")


class LowRankModule(TracedModule):
    """A traced module with low-rank sums beside its adapted maps.

    Its `params` are the base's and `leaves` of the adapters. With a key the adapter's dropout
    draws; without one it does not.

    Args:
        base: the module without adapters.
        adapter: which maps, at what scale, with what dropout.
    """

    def __init__(self, base: TracedModule, adapter: Adapter):
        super().__init__(base._tracer, base.variables)
        self.adapter = adapter
        self._adapted: dict[tuple[int, bool], tuple[Program, Program]] = {}

    def apply(
        self,
        variables: Any,
        *args: Any,
        train: bool = False,
        rngs: Mapping[str, jax.Array] | jax.Array | None = None,
        mutable: Any = False,
        **inputs: Any,
    ) -> Any:
        """Return the output for any variables; see `TracedModule.apply`.

        Raises:
            InputRefused: as there; a dropout on maps that the module computes in another way.
        """
        program, values = self._tracer.program(train, args, inputs)
        key = next(iter(rngs.values()), None) if isinstance(rngs, Mapping) else rngs
        output, changed = self._program(program, key is not None).run(variables, values, key)
        if mutable is False or mutable is None:
            return output
        return output, {"buffers": {**variables["buffers"], **changed}}

    def _program(self, program: Program, drops: bool) -> Program:
        key = (id(program), drops)
        if key not in self._adapted:
            rate = self.adapter.dropout if drops else 0.0
            graph = with_low_rank_sums(program.graph, self.adapter, rate)
            self._adapted[key] = program, Program(graph, program.constants)
        return self._adapted[key][1]


def leaves(adapters: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return adapters as leaves of `params`: "<module>.lora_A.weight", the same of B and of M.

    Leaves that are trained whole come under their own names.
    """
    low = {
        _leaf(name, side): value
        for name, pair in adapters.items()
        if name != WHOLE
        for side, value in pair.items()
    }
    return {**low, **adapters.get(WHOLE, {})}


def with_low_rank_sums(graph: Graph, adapter: Adapter, dropout: float) -> Graph:
    """Return a graph whose adapted maps have their low-rank sums, with parameters of their own.

    A weight that is read otherwise than by a linear map gets its product added instead.

    Raises:
        InputRefused: there is such a weight and a dropout, which needs a linear map's input.
    """
    params = dict(graph.params)
    values = {path: name for name, path in graph.params.items()}
    present = {values[leaf]: m for m, leaf in adapter.weights if leaf in values}
    for module in present.values():
        sides = (*SIDES, "M") if adapter.dora else SIDES
        params |= {f"lora_{side}_{module}": _leaf(module, side) for side in sides}
    maps = _Maps.of(graph, adapter, present)
    others = maps.read_otherwise(graph)
    if others and dropout:
        raise InputRefused(
            listed(
                "lora_dropout: these modules' weights are read otherwise than by a linear map; "
                "leave them out of the targets, or the dropout:",
                sorted(present[name] for name in others),
            )
        )
    maps = maps.without_turned(others)
    nodes: list[Node] = []
    for name in others:
        nodes += _merged(Ref(name), present[name], adapter)
    names = {module: name for name, module in present.items()}
    renamed = {name: f"{name}.adapted" for name in others}
    for node in graph.nodes:
        found = maps.adapted_by(node)
        if found is not None:
            nodes += _summed(node, *found, Ref(names[found[0]]), adapter, dropout)
        elif renamed.keys() & set(references((node.args, dict(node.kwargs)))):
            args, kwargs = _renamed(node.args, renamed), _renamed(dict(node.kwargs), renamed)
            nodes.append(replace(node, args=tuple(args), kwargs=kwargs))
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), params=params)


def _leaf(module: str, side: str) -> str:
    return f"{module}.lora_magnitude_vector" if side == "M" else f"{module}.lora_{side}.weight"


@dataclass(frozen=True)
class _Maps:
    """The values of a graph that are adapted weights.

    Attributes:
        stored: value to its module, of those that lie [outputs, inputs].
        across: the same, of those that lie [inputs, outputs].
        turned: a transposed weight's value to the weight's.
    """

    stored: Mapping[str, str]
    across: Mapping[str, str]
    turned: Mapping[str, str]

    @classmethod
    def of(cls, graph: Graph, adapter: Adapter, present: Mapping[str, str]) -> _Maps:
        """Return those of a graph, whose adapted parameters are `present`."""
        across = {name: m for name, m in present.items() if m in adapter.transposed}
        stored = {name: m for name, m in present.items() if m not in adapter.transposed}
        turned = {
            node.name: node.args[0].name
            for node in graph.nodes
            if node.op in _TURNS and isinstance(node.args[0], Ref) and node.args[0].name in present
        }
        flat = {value: stored[name] for value, name in turned.items() if name in stored}
        upright = {value: across[name] for value, name in turned.items() if name in across}
        return cls({**stored, **upright}, {**across, **flat}, turned)

    def without_turned(self, weights: Sequence[str]) -> _Maps:
        """Return them without what was transposed from `weights`."""
        gone = {value for value, name in self.turned.items() if name in weights}
        stored, across, turned = (
            {value: name for value, name in found.items() if value not in gone}
            for found in (self.stored, self.across, self.turned)
        )
        return _Maps(stored, across, turned)

    def adapted_by(self, node: Node) -> tuple[str, Any] | None:
        """Return the adapted module whose linear map a node is, and the map's input."""
        for places, weights in ((_STORED, self.stored), (_ACROSS, self.across)):
            if node.op in places:
                weight, x = (node.args[place] for place in places[node.op])
                if isinstance(weight, Ref) and weight.name in weights:
                    return weights[weight.name], x
        return None

    def read_otherwise(self, graph: Graph) -> list[str]:
        """Return the adapted weights that another node than a linear map reads."""
        modules = {**self.stored, **self.across}
        found: list[str] = list(references(graph.outputs))
        for node in graph.nodes:
            if node.name not in self.turned:
                map_of = self.adapted_by(node)
                own = None if map_of is None else map_of[0]
                read = references((node.args, dict(node.kwargs)))
                found += [name for name in read if modules.get(name) != own]
        known = (self.turned.get(name, name) for name in found if name in modules)
        return list(dict.fromkeys(known))


def _summed(
    node: Node, module: str, x: Any, weight: Ref, adapter: Adapter, dropout: float
) -> Iterator[Node]:
    """Yield a linear map's node with the scaled low-rank product added, under its old name."""
    base, total, factor = f"{node.name}.base", f"{node.name}.sum", adapter.scale_of(module)
    yield replace(node, name=base)
    if dropout:
        yield _node(f"{node.name}.kept", "aten.dropout.default", (x, dropout, True))
        x = Ref(f"{node.name}.kept")
    sides, seen = [Ref(f"lora_{side}_{module}") for side in SIDES], x
    for side, name in zip(sides, (f"{node.name}.low", f"{node.name}.high"), strict=True):
        yield _node(name, "aten.linear.default", (x, side))
        x = Ref(name)
    if not adapter.dora:
        yield _node(f"{node.name}.scaled", "aten.mul.Tensor", (x, factor))
        yield _node(total, "aten.add.Tensor", (Ref(base), Ref(f"{node.name}.scaled")))
    else:
        places = _STORED.get(node.op) or _ACROSS[node.op]
        plain = "aten.linear.default" if node.op in _STORED else "aten.matmul.default"
        yield _node(f"{node.name}.plain", plain, (seen, node.args[places[0]]))
        pair = (*sides, Ref(f"lora_M_{module}"), factor, module in adapter.transposed)
        parts = (Ref(base), Ref(f"{node.name}.plain"), x, weight, *pair)
        yield _node(total, DECOMPOSED_SUM, parts)
    yield _cast(node.name, total, node.dtype)


def _merged(weight: Ref, module: str, adapter: Adapter) -> Iterator[Node]:
    """Yield the node of the weight with its adapter, W + scale B A."""
    sides = (*SIDES, "M") if adapter.dora else SIDES
    pair = tuple(Ref(f"lora_{side}_{module}") for side in sides)
    op = DECOMPOSED_WEIGHT if adapter.dora else ADAPTED_WEIGHT
    args = (weight, *pair, adapter.scale_of(module), module in adapter.transposed)
    yield _node(f"{weight.name}.adapted", op, args)


@operator(ADAPTED_WEIGHT)
def _adapted_weight(weight: Any, a: Any, b: Any, factor: float, across: bool) -> jax.Array:
    return summed(weight, a, b, factor, across).astype(weight.dtype)


@operator(DECOMPOSED_WEIGHT)
def _decomposed_weight(
    weight: Any, a: Any, b: Any, magnitude: Any, factor: float, across: bool
) -> jax.Array:
    total = summed(weight, a, b, factor, across)
    return decomposed(total, magnitude, across).astype(weight.dtype)


@operator(DECOMPOSED_SUM)
def _decomposed_sum(
    base: Any,
    plain: Any,
    low: Any,
    weight: Any,
    a: Any,
    b: Any,
    magnitude: Any,
    factor: float,
    across: bool,
) -> jax.Array:
    """Return a map's output [..., outputs] with its adapter and the trained magnitudes.

    Args:
        base: the map's own output, with its bias.
        plain: x W without a bias, of the input that the adapter sees.
        low: x A B of it.
        weight, a, b, magnitude: the map's weight, and the adapter.
        factor: the scale of `low`.
        across: whether the weight lies [inputs, outputs].
    """
    total = summed(weight, a, b, factor, across)
    share = magnitude / jax.lax.stop_gradient(lengths(total, across))
    return base + (share - 1) * plain + share * factor * low


def _node(name: str, op: str, args: tuple[Any, ...]) -> Node:
    return Node(name, op, args, {}, None, "a LoRA adapter")


def _cast(name: str, value: str, dtype: str | None) -> Node:
    # A float32 sum goes on in the base's own dtype, as in PEFT.
    given = {} if dtype is None else {"dtype": dtype}
    return Node(name, "aten._to_copy.default", (Ref(value),), given, dtype, "a LoRA adapter")


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Ref):
        return Ref(names.get(value.name, value.name))
    if isinstance(value, list | tuple):
        return [_renamed(part, names) for part in value]
    if isinstance(value, Mapping):
        return {name: _renamed(part, names) for name, part in value.items()}
    return value
