"""Where the values of a process's own checkpoint lay, and whether a reader wants them there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from dew.artifacts.coordination import pool_size, rank
from dew.checkpoints.leaves import Path as LeafPath
from dew.checkpoints.shards import Box, boxes_on, volume_of, whole_box
from dew.errors import InputRefused, listed


def placement_of(leaves: Mapping[LeafPath, Any], directory: str) -> dict[str, Any]:
    """Return how a state lies on this process, as JSON carries it.

    Args:
        leaves: its arrays by path.
        directory: the run's folder, which tells whose checkpoint it is.
    """
    return {
        "directory": directory,
        "process": rank(),
        "processes": pool_size(),
        "mesh": _mesh(leaves),
        "boxes": {"/".join(path): _lies(leaf, np.shape(leaf)) for path, leaf in leaves.items()},
    }


def is_ours(placement: Mapping[str, Any] | None, directory: str) -> bool:
    """Tell whether this process of this pool can read a checkpoint that lay so."""
    ours = {"directory": directory, "process": rank(), "processes": pool_size()}
    return placement is not None and {name: placement.get(name) for name in ours} == ours


def check_placement(
    placement: Mapping[str, Any], wanted: Mapping[LeafPath, Any], folder: str
) -> None:
    """Compare where the values lay with where a reader wants them.

    Args:
        placement: what `placement_of` recorded.
        wanted: `jax.ShapeDtypeStruct` by path; one without a sharding wants all of its leaf.
        folder: the checkpoint, for the message.

    Raises:
        InputRefused: they lay elsewhere; before anything is read.
    """
    problems = []
    mesh, placed = placement["mesh"], _mesh(wanted)
    if placed is not None and placed != mesh:
        problems.append(f"mesh  {mesh} wrote it, wanted on {placed}")
    for path, leaf in wanted.items():
        name = "/".join(path)
        lay, wants = placement["boxes"].get(name), _lies(leaf, leaf.shape)
        if lay is None:
            continue
        if wants and lay != wants:
            problems.append(f"leaf  {name} lay on [device, box] {lay}, wanted {wants}")
        elif not wants and not _covers(lay, leaf.shape):
            problems.append(f"leaf  {name} lies in part on other processes")
    if problems:
        raise InputRefused(
            listed(
                f"{folder} holds the values of one process as they lay on its devices, and is "
                "wanted otherwise. Go on with the placement that wrote it, or pass step= of a "
                "persistent checkpoint, which restores onto any mesh:",
                problems,
            )
        )


def _mesh(leaves: Mapping[LeafPath, Any]) -> dict[str, int] | None:
    for leaf in leaves.values():
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding):
            return {str(name): size for name, size in sharding.mesh.shape.items()}
    return None


def _lies(leaf: Any, shape: tuple[int, ...]) -> list[Any]:
    """Return `[device, box]` for each of this process's devices; nothing for a host array."""
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return []
    order = {device: number for number, device in enumerate(jax.local_devices())}
    boxes = {order[device]: box for device, box in boxes_on(sharding, shape).items()}
    return [[number, [list(side) for side in boxes[number]]] for number in sorted(boxes)]


def _covers(lay: list[Any], shape: tuple[int, ...]) -> bool:
    boxes: set[Box] = {tuple((start, stop) for start, stop in box) for _, box in lay}
    boxes = boxes or {whole_box(shape)}
    held = sum(map(volume_of, boxes))
    return held >= math.prod(shape)
