"""`TracedModule`: a torch module as a pure JAX function and a tree of its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.torch.graph import Graph, Input
from bridges.torch.run import Program
from dew.errors import InputRefused, listed, shown

Variables = dict[str, dict[str, Any]]


class TracedModule:
    """A torch module's computation, in JAX.

    Args:
        tracer: gives the programs.
        variables: the weights.
        static: names of inputs that a call takes as constants.

    Attributes:
        variables: `{"params": ..., "buffers": ...}`, each a dict by torch's names. A parameter
            that the module knows by several names stands under the first.
    """

    def __init__(
        self,
        tracer: Tracer,
        variables: Variables,
        *,
        static: tuple[str, ...] = (),
    ):
        self.variables = variables
        self._tracer = tracer
        self._static = static
        self._jitted: dict[Any, Any] = {}

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Run the module once on its own variables, jitted.

        Args:
            *args: arrays, by position as torch's forward takes them.
            **inputs: the same by name.

        Returns:
            torch's own output: an array, a tuple, a dict, or an `Output` with named fields.
        """
        known, varying = self._parted(args, inputs)
        signature = (len(args), _frozen(known), tuple(varying))
        if signature not in self._jitted:
            count = len(args)

            @jax.jit
            def call(variables: Any, varying: dict[Any, Any]) -> Any:
                merged = {**known, **varying}
                positional = [merged[number] for number in range(count)]
                named = {name: merged[name] for name in inputs}
                return self.apply(variables, *positional, **named)

            self._jitted[signature] = call
        return self._jitted[signature](self.variables, varying)

    def apply(
        self,
        variables: Any,
        *args: Any,
        train: bool = False,
        rngs: Mapping[str, jax.Array] | jax.Array | None = None,
        mutable: Any = False,
        **inputs: Any,
    ) -> Any:
        """Return the module's output for any variables: pure, to be jitted or differentiated.

        Its options are those of a flax module's `apply`, so that an objective takes either.

        Args:
            variables: laid out as `self.variables`.
            *args: arrays by position.
            train: run torch's training mode: dropout draws, batch norm uses the batch's moments.
            rngs: a key, or one by any name, for a module that draws.
            mutable: collections to return as they are afterwards; False for the output alone.
            **inputs: arrays by name.

        Returns:
            The output, or with `mutable` the output and `{"buffers": ...}`.

        Raises:
            InputRefused: inputs that the module does not take, or of a shape that it was not
                traced for and that torch is not at hand to trace; or it draws and has no key.
        """
        program, values = self._tracer.program(train, args, inputs)
        key = next(iter(rngs.values()), None) if isinstance(rngs, Mapping) else rngs
        output, changed = program.run(variables, values, key)
        if mutable is False or mutable is None:
            return output
        return output, {"buffers": {**variables["buffers"], **changed}}

    def program(self, **inputs: Any) -> tuple[Program, dict[str, Any]]:
        """Return the program that a call runs, and its inputs by the names of its graph."""
        return self._tracer.program(False, (), inputs)

    def init(self, rngs: Any, *args: Any, **inputs: Any) -> Variables:
        """Return the weights that the module came with; nothing is drawn."""
        del rngs, args, inputs
        return self.variables

    def holding(self, variables: Variables) -> TracedModule:
        """Return this module with other weights; both share what was traced."""
        return TracedModule(self._tracer, variables, static=self._static)

    @property
    def torch_module(self) -> Any:
        """The torch module itself, made now where it was not needed yet."""
        return self._tracer.torch_module()

    @property
    def graph(self) -> Graph:
        """The graph of the example inputs."""
        return self._tracer.programs[False][0].graph

    def _parted(self, args: Any, inputs: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Return the inputs that are known when the module is traced, and the others."""
        given = {**dict(enumerate(args)), **inputs}
        known, varying = {}, {}
        for name, value in given.items():
            plain = value is None or isinstance(value, bool | int | float | str)
            if plain or name in self._static:
                known[name] = value if plain else jax.tree.map(np.asarray, value)
            else:
                varying[name] = jax.tree.map(_array, value)
        return known, varying


class Tracer:
    """Gives the program for each mode and shape of inputs, traced where it is new.

    Args:
        torch_module: gives the torch module, when one has to be traced.
        canonical: every name of a parameter or buffer to the one that it is kept under.
        programs: the programs that there are, by whether they train.
        keep: told of each new program, to store it; or None.
    """

    def __init__(
        self,
        torch_module: Callable[[], Any],
        canonical: Mapping[str, str],
        programs: Mapping[bool, list[Program]],
        keep: Callable[[bool, Program], None] | None = None,
    ):
        self.torch_module = torch_module
        self._canonical = canonical
        self.programs = {False: [], True: [], **programs}
        self._keep = keep

    def program(
        self, training: bool, args: tuple[Any, ...], inputs: Mapping[str, Any]
    ) -> tuple[Program, dict[str, Any]]:
        """Return a program that fits these inputs, and the inputs by the names of its graph."""
        leaves = dict(leaves_of(list(args), ())) | dict(leaves_of(dict(inputs), ()))
        for program in self.programs[training]:
            values = _matched(program.graph.inputs, leaves)
            if values is not None:
                return program, values
        from bridges.torch.tracing import trace

        try:
            module = self.torch_module()
        except ImportError as error:
            stored = [leaf for p in self.programs[training] for leaf in p.graph.inputs]
            lines = [*_described(leaves), *_fitting(stored)]
            raise InputRefused(
                listed(f"no stored trace fits these inputs, and a new one needs {error}:", lines)
            ) from error
        program = trace(
            module, args, inputs, training=training, canonical=self._canonical, dynamic=True
        )
        values = _matched(program.graph.inputs, leaves)
        if values is None:
            # torch has given a name to what may vary that these very inputs do not fit.
            program = trace(module, args, inputs, training=training, canonical=self._canonical)
            values = _matched(program.graph.inputs, leaves) or {}
        self.programs[training].append(program)
        if self._keep is not None:
            self._keep(training, program)
        return program, values


def leaves_of(
    value: Any, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every leaf of nested containers with where it stands, in torch's order."""
    if isinstance(value, Mapping):
        for key in value:
            yield from leaves_of(value[key], (*path, key))
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from leaves_of(part, (*path, number))
    else:
        yield path, value


def _matched(wanted: tuple[Input, ...], leaves: Mapping[Any, Any]) -> dict[str, Any] | None:
    """Return the leaves by the names of a graph's inputs, or None where they do not fit it."""
    if {leaf.path for leaf in wanted if leaf.shape is not None} - set(leaves):
        return None
    if set(leaves) - {leaf.path for leaf in wanted}:
        return None
    symbols: dict[str, int] = {}
    values: dict[str, Any] = {}
    for leaf in wanted:
        value = leaves.get(leaf.path, leaf.constant)
        if leaf.shape is None:
            if hasattr(value, "shape") or value != leaf.constant:
                return None
            values[leaf.name] = value
            continue
        if not hasattr(value, "shape") or len(value.shape) != len(leaf.shape):
            return None
        if _kind(value.dtype) != _kind(jnp.dtype(leaf.dtype)):
            return None
        for length, expected in zip(value.shape, leaf.shape, strict=True):
            if isinstance(expected, str) and expected.isidentifier():
                expected = symbols.setdefault(expected, length)
            if length != expected:
                return None
        values[leaf.name] = value
    return values


def _kind(dtype: Any) -> str:
    return jnp.dtype(dtype).kind.replace("u", "i").replace("V", "f")


def _array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) or value is None else jnp.asarray(value)


def _frozen(known: Mapping[Any, Any]) -> Any:
    def one(value: Any) -> Any:
        leaves, structure = jax.tree.flatten(value)
        return structure, tuple(
            (leaf.shape, str(leaf.dtype), leaf.tobytes()) if hasattr(leaf, "tobytes") else leaf
            for leaf in leaves
        )

    return tuple((name, one(value)) for name, value in known.items())


def _described(leaves: Mapping[Any, Any]) -> list[str]:
    return [
        f"given {'.'.join(map(str, path))}: "
        + (f"{value.dtype} {tuple(value.shape)}" if hasattr(value, "shape") else shown(value))
        for path, value in leaves.items()
    ]


def _fitting(stored: list[Input]) -> list[str]:
    return [
        f"stored {'.'.join(map(str, leaf.path))}: {leaf.dtype} {leaf.shape}"
        for leaf in stored
        if leaf.shape is not None
    ]
