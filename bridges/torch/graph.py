"""A traced module as plain values: nodes, what goes in, what comes out; and its JSON form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 1


@dataclass(frozen=True)
class Ref:
    """The value of an earlier node or of an input."""

    name: str


@dataclass(frozen=True)
class Node:
    """One operator applied.

    Attributes:
        name: of its value.
        op: torch's name for the operator, such as "aten.add.Tensor".
        args: numbers, texts, None, `Ref`s and lists of them.
        kwargs: the same by name.
        dtype: torch's dtype of the value, None where it is not one array.
        where: the submodule and the source line that it comes from.
    """

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dtype: str | None = None
    where: str = ""


@dataclass(frozen=True)
class Input:
    """One leaf of the inputs.

    Attributes:
        name: of its value in the graph.
        path: where it stands: a position or a keyword first, then indices and keys.
        shape: lengths, and a symbol where a length may vary; None where it is no array.
        dtype: torch's dtype, None where it is no array.
        constant: the value that the trace was made for, where it is no array.
    """

    name: str
    path: tuple[str | int, ...]
    shape: tuple[int | str, ...] | None = None
    dtype: str | None = None
    constant: Any = None


@dataclass(frozen=True)
class Structure:
    """How the outputs are put together.

    Attributes:
        kind: "leaf", "tuple", "list", "dict", or "output" for a class with named fields.
        keys: of a dict or an output.
        parts: below it, in order; leaves are numbered from the left.
    """

    kind: str
    keys: tuple[str, ...] = ()
    parts: tuple[Structure, ...] = ()


@dataclass(frozen=True)
class Graph:
    """A module's computation.

    Attributes:
        nodes: in an order that they can run in.
        inputs: the leaves of the arguments.
        params: value name to the name of a parameter.
        buffers: value name to the name of a buffer.
        constants: names of values that the graph brings itself.
        outputs: one for each leaf of the output: a `Ref`, or a plain value.
        structure: of the output.
        mutations: buffer name to the `Ref` of its value afterwards.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Input, ...]
    params: Mapping[str, str]
    buffers: Mapping[str, str]
    constants: tuple[str, ...]
    outputs: tuple[Any, ...]
    structure: Structure
    mutations: Mapping[str, Ref] = field(default_factory=dict)


def references(value: Any) -> Iterator[str]:
    """Yield the names of all values that an argument refers to."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, list | tuple):
        for part in value:
            yield from references(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from references(part)


def to_json(graph: Graph) -> str:
    """Return the graph as JSON."""
    record = {
        "format": FORMAT,
        "nodes": [
            [n.name, n.op, _plain(n.args), _plain(dict(n.kwargs)), n.dtype, n.where]
            for n in graph.nodes
        ],
        "inputs": [{**asdict(i), "constant": _plain(i.constant)} for i in graph.inputs],
        "params": dict(graph.params),
        "buffers": dict(graph.buffers),
        "constants": list(graph.constants),
        "outputs": _plain(graph.outputs),
        "structure": asdict(graph.structure),
        "mutations": {name: ref.name for name, ref in graph.mutations.items()},
    }
    return json.dumps(record)


def from_json(text: str) -> Graph:
    """Return the graph that `to_json` wrote.

    Raises:
        ValueError: it is not one, or of another format.
    """
    record = json.loads(text)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError("not a traced graph of this format")
    return Graph(
        nodes=tuple(
            Node(name, op, tuple(_value(args)), _value(kwargs), dtype, where)
            for name, op, args, kwargs, dtype, where in record["nodes"]
        ),
        inputs=tuple(
            Input(
                part["name"],
                tuple(part["path"]),
                None if part["shape"] is None else tuple(part["shape"]),
                part["dtype"],
                _value(part["constant"]),
            )
            for part in record["inputs"]
        ),
        params=record["params"],
        buffers=record["buffers"],
        constants=tuple(record["constants"]),
        outputs=tuple(_value(record["outputs"])),
        structure=_structure(record["structure"]),
        mutations={name: Ref(ref) for name, ref in record["mutations"].items()},
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.name}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {"map": {key: _plain(part) for key, part in value.items()}}
    return value


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(part) for part in plain]
    if isinstance(plain, dict):
        if "ref" in plain:
            return Ref(plain["ref"])
        if "complex" in plain:
            return complex(*plain["complex"])
        return {key: _value(part) for key, part in plain["map"].items()}
    return plain


def _structure(plain: Mapping[str, Any]) -> Structure:
    parts = tuple(_structure(part) for part in plain["parts"])
    return Structure(plain["kind"], tuple(plain["keys"]), parts)
