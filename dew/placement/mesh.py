"""The mesh: how many devices each kind of parallelism takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jax.sharding import AxisType, Mesh

from dew.errors import InputRefused

DATA = "data"
BATCH_AXES = (DATA, "fsdp")
"""The mesh axes that a batch is cut over."""


@dataclass(frozen=True)
class MeshSpec:
    """How many devices each axis takes; data parallelism takes the rest.

    Args:
        fsdp: parts that parameters, moments and the batch are cut into.
        tensor: parts that heads, MLP features and the vocabulary are cut into.
        sequence: parts that activations are cut into along the length.
        expert: parts that a mixture's experts are spread over.
        stage: parts that the layers are spread over.

    Raises:
        InputRefused: an axis below 1.
    """

    fsdp: int = 1
    tensor: int = 1
    sequence: int = 1
    expert: int = 1
    stage: int = 1

    def __post_init__(self) -> None:
        """Refuse what no mesh can have."""
        for axis, size in self.sizes.items():
            if size < 1:
                raise InputRefused(f"mesh: {axis} is {size}; an axis takes at least 1 device")

    @property
    def sizes(self) -> dict[str, int]:
        """Axis to devices, data left out."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def build(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Return the mesh over `devices`, by default all of the pool.

        Data parallelism is the outermost axis, so that the others stay within a process where
        they can.

        Raises:
            InputRefused: the devices do not divide.
        """
        if devices is None:
            import jax

            devices = jax.devices()
        taken = math.prod(self.sizes.values())
        if len(devices) % taken:
            asked = " x ".join(f"{axis} {n}" for axis, n in self.sizes.items() if n > 1)
            raise InputRefused(
                f"mesh: {asked} take {taken} devices, and {len(devices)} do not divide by that; "
                f"choose axes whose product divides {len(devices)}"
            )
        shape = (len(devices) // taken, *self.sizes.values())
        names = (DATA, *self.sizes)
        return Mesh(np.asarray(devices).reshape(shape), names, (AxisType.Auto,) * len(names))
