"""A train state as nested dicts of named leaves, which is how it lies on disk.

Containers (optax's named tuples, tuples, dataclasses) are not stored: the reader's template
has them, and its own tree definition puts the leaves back. So what comes back has the same
`jax.tree.structure` as what was saved, for every optimizer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

Path = tuple[str, ...]


def fields_of(state: Any) -> dict[str, Any]:
    """Return a state's fields by name.

    Args:
        state: a dataclass, as `TrainState`, or a mapping.

    Raises:
        TypeError: it is neither.
    """
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    if isinstance(state, Mapping):
        return {str(name): value for name, value in state.items()}
    raise TypeError(f"a state is a dataclass or a mapping, not {type(state).__name__}")


def leaves_of(tree: Any) -> dict[Path, Any]:
    """Return every leaf of `tree` under the names of the nodes above it."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {tuple(_name(entry) for entry in path): leaf for path, leaf in pairs}


@dataclasses.dataclass(frozen=True)
class Node:
    """A leaf of a tree, or a node that holds nothing.

    Attributes:
        path: the names of the nodes above it, and its own.
        numbered: for each of those names, whether it is a place in a tuple or a list.
        empty: `None`, `Dict`, `List` or `Tuple` for a node that holds nothing, None for a leaf.
    """

    path: Path
    numbered: tuple[bool, ...]
    empty: str | None = None


def outline_of(tree: Any) -> tuple[Node, ...]:
    """Return every leaf of `tree` and every node that holds nothing."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_holds_nothing)
    return tuple(
        Node(
            tuple(_name(entry) for entry in path),
            tuple(isinstance(entry, jax.tree_util.SequenceKey) for entry in path),
            _kind(node) if _holds_nothing(node) else None,
        )
        for path, node in pairs
    )


def nested(leaves: Mapping[Path, Any]) -> dict[str, Any]:
    """Return nested dicts with each leaf at its path.

    Raises:
        ValueError: a path runs through another leaf.
    """
    root: dict[str, Any] = {}
    for path, leaf in leaves.items():
        node = root
        for name in path[:-1]:
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                raise ValueError(f"the state has a leaf and a node at {'/'.join(path)}")
        node[path[-1]] = leaf
    return root


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return shape and dtype as stored: a typed PRNG key counts as the integers it holds."""
    if is_key(leaf):
        return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.numpy.result_type(leaf))


def is_key(leaf: Any) -> bool:
    """Tell whether `leaf` is a typed PRNG key (or the shape of one)."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def restored(value: Any, wanted: Any) -> Any:
    """Return a stored value as the kind of leaf that the template wants."""
    if is_key(wanted):
        return jax.random.wrap_key_data(value, impl=_implementation(wanted))
    return value


def _holds_nothing(node: Any) -> bool:
    structure = jax.tree.structure(node)
    return structure.num_nodes == 1 and not structure.num_leaves


def _kind(node: Any) -> str:
    # An empty named tuple, as optax has them, counts as None.
    kinds = {tuple: "Tuple", list: "List", dict: "Dict"}
    return kinds.get(type(node), "None")


def _implementation(wanted: Any) -> Any:
    # `key_impl` wants a key, not its shape; a traced one will do.
    found: list[Any] = []
    shape = jax.ShapeDtypeStruct(wanted.shape, wanted.dtype)
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), shape)
    return found[0]


def _name(entry: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)
