"""The setting `mesh`: how a run's devices are shared out."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dew.errors import InputRefused, nearest, shown


def mesh_of(text: str) -> Any:
    """Return the `MeshSpec` of a setting such as "fsdp=4,tensor=2"; empty is data parallel.

    Raises:
        InputRefused: an axis that does not exist, or a size that is not a number from 1.
    """
    from dew.placement import MeshSpec

    axes = [field.name for field in fields(MeshSpec)]
    sizes: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, size = (piece.strip() for piece in part.partition("="))
        if name not in axes:
            raise InputRefused(
                f"mesh: no axis {shown(name)}{nearest(name, axes)}; known: {', '.join(axes)}. "
                "Data parallelism takes the devices that they leave."
            )
        if not size.isdecimal() or not 1 <= int(size) <= 2**20:
            raise InputRefused(f"mesh: {name} is {shown(size)}; expected a number of devices")
        sizes[name] = int(size)
    return MeshSpec(**sizes)


def batch_parts(mesh: Any) -> int:
    """Return into how many parts a mesh cuts a batch."""
    from dew.placement.mesh import BATCH_AXES

    shape = mesh.build().shape
    return shape[BATCH_AXES[0]] * shape[BATCH_AXES[1]]
