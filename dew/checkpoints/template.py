"""How stored leaves meet the tree that a reader asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from dew.checkpoints.leaves import Path as LeafPath
from dew.checkpoints.leaves import leaves_of, nested, restored, shape_of
from dew.checkpoints.manifest import Manifest
from dew.checkpoints.shards import HostLeaf
from dew.checkpoints.tree import read_tree
from dew.errors import InputRefused, listed


def shapes_of(leaves: Mapping[LeafPath, HostLeaf]) -> dict[str, Any]:
    """Return nested dicts of `[dtype name, shape]`, as the manifest holds them."""
    return nested({path: [leaf.dtype.name, list(leaf.shape)] for path, leaf in leaves.items()})


def structs_of(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest's shapes as a tree of `jax.ShapeDtypeStruct`."""
    return {
        name: structs_of(node)
        if isinstance(node, Mapping)
        else jax.ShapeDtypeStruct(tuple(node[1]), jax.numpy.dtype(node[0]))
        for name, node in shapes.items()
    }


def wanted_leaves(manifest: Manifest, template: Any) -> dict[LeafPath, Any]:
    """Return shape, dtype and sharding of what a template wants, by path; None wants all."""
    if template is None:
        return leaves_of(structs_of(manifest.leaves))
    return {path: _with_sharding(leaf) for path, leaf in leaves_of(template).items()}


def read_into(folder: Path, manifest: Manifest, template: Any) -> Any:
    """Read a checkpoint's leaves into the template's containers; None reads all, as nested dicts.

    Raises:
        InputRefused: leaves that are missing, left over, misshapen or of another dtype.
    """
    stored = leaves_of(structs_of(manifest.leaves))
    if template is None:
        return {**nested(read_tree(folder, stored, stored)), **dict.fromkeys(manifest.unset)}
    wanted = leaves_of(template)
    shapes = wanted_leaves(manifest, template)
    whole = () if isinstance(template, Mapping) else _set_fields(template)
    problems = _differences(stored, shapes, whole)
    if problems:
        raise InputRefused(
            listed(f"{folder} does not hold the state that this run wants:", problems)
        )
    values = read_tree(folder, stored, shapes)
    leaves = [restored(values[path], leaf) for path, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _differences(
    stored: Mapping[LeafPath, Any], wanted: Mapping[LeafPath, Any], whole: tuple[str, ...]
) -> list[str]:
    """Return what does not fit, a line each; fields in `whole` may leave nothing over."""
    problems = []
    for path, leaf in wanted.items():
        name, found = "/".join(path), stored.get(path)
        if found is None:
            problems.append(f"missing    {name} {leaf.dtype.name}{list(leaf.shape)}")
        elif found.shape != leaf.shape:
            problems.append(f"shape      {name} is {list(found.shape)}, wanted {list(leaf.shape)}")
        elif found.dtype != leaf.dtype:
            problems.append(f"dtype      {name} is {found.dtype.name}, wanted {leaf.dtype.name}")
    for path, leaf in stored.items():
        if path[0] in whole and path not in wanted:
            problems.append(f"left over  {'/'.join(path)} {leaf.dtype.name}{list(leaf.shape)}")
    return problems


def _set_fields(template: Any) -> tuple[str, ...]:
    return tuple(
        field.name
        for field in dataclasses.fields(template)
        if getattr(template, field.name) is not None
    )


def _with_sharding(leaf: Any) -> jax.ShapeDtypeStruct:
    plain = shape_of(leaf)
    sharding = getattr(leaf, "sharding", None)
    return jax.ShapeDtypeStruct(plain.shape, plain.dtype, sharding=sharding)
