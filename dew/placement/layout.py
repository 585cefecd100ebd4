"""The layout: which mesh axes cut which axes of a parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jax.sharding import Mesh, PartitionSpec

from dew.errors import InputRefused, listed
from dew.placement.mesh import BATCH_AXES, DATA

Axes = tuple[str | None, ...]

RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("batch", BATCH_AXES),
    ("length", ("sequence",)),
    ("vocab", ("tensor", "fsdp")),
    ("table_features", ("fsdp", "tensor")),
    ("heads", ("tensor",)),
    ("kv_heads", ("tensor",)),
    ("mlp", ("tensor",)),
    ("embed", ("fsdp",)),
    ("features", ("fsdp",)),
)
"""Logical axis to the mesh axes that may cut it, in the order they are tried. An axis without a
rule stays whole; `features` is the longest axis of a leaf that names none."""

_LARGEST = 5


class LayoutRefused(InputRefused):
    """A state that would lie whole on every device of a mesh that was to cut it."""


@dataclass(frozen=True)
class Layout:
    """How a train state is placed on a mesh.

    Args:
        rules: as `RULES`. Of one leaf, a mesh axis cuts one axis only, and only where it divides.
        min_shard: leaves of fewer elements stay whole.
        tolerance: the part of all larger leaves' elements that may stay whole without a refusal.
    """

    rules: tuple[tuple[str, tuple[str, ...]], ...] = RULES
    min_shard: int = 65536
    tolerance: float = 0.02

    def spec(self, axes: Axes | None, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
        """Return how a parameter is cut.

        Args:
            axes: the logical name of each axis, or None where the leaf names none.
            shape: of the leaf.
            mesh: with the axes of `MeshSpec`.
        """
        if math.prod(shape) < self.min_shard:
            return PartitionSpec()
        if axes is None or len(axes) != len(shape):
            longest = max(range(len(shape)), key=shape.__getitem__, default=0)
            axes = tuple("features" if at == longest else None for at in range(len(shape)))
        return self.activation(axes, shape, mesh)

    def activation(self, axes: Axes, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
        """Return how any array with named axes is cut, whatever its size."""
        rules, used, parts = dict(self.rules), set(), []
        for name, size in zip(axes, shape, strict=True):
            chosen: list[str] = []
            for axis in rules.get(name or "", ()):
                parts_so_far = math.prod(mesh.shape[a] for a in chosen)
                fits = size % (parts_so_far * mesh.shape[axis]) == 0
                if axis not in used and mesh.shape[axis] > 1 and fits:
                    chosen.append(axis)
                    used.add(axis)
            parts.append(tuple(chosen) if len(chosen) > 1 else (chosen[0] if chosen else None))
        return PartitionSpec(*parts)

    def check(
        self,
        mesh: Mesh,
        leaves: Mapping[str, tuple[tuple[int, ...], Axes | None]],
        *,
        activations: Iterable[str] = ("batch",),
    ) -> None:
        """Refuse what the mesh cannot place, before anything is allocated.

        Args:
            mesh: where the state is to lie.
            leaves: the parameters: path to shape and logical axes.
            activations: the logical axes that the model cuts its activations over.

        Raises:
            LayoutRefused: a mesh axis that nothing of this model is cut over, or more than
                `tolerance` of the larger leaves' elements whole; the largest are named.
        """
        asked = [axis for axis, size in mesh.shape.items() if size > 1 and axis != DATA]
        used = {axis for name in activations for axis in dict(self.rules).get(name, ())}
        whole: list[tuple[int, str]] = []
        large = 0
        for path, (shape, axes) in leaves.items():
            size = math.prod(shape)
            cut = _mesh_axes(self.spec(axes, shape, mesh))
            used |= cut
            large += size if size >= self.min_shard else 0
            if size >= self.min_shard and not cut:
                whole.append((size, f"{path} {list(shape)}"))
        parameters = {axis for axis in asked if axis not in dict(self.rules).get("length", ())}
        idle = [axis for axis in asked if axis not in used]
        if idle:
            raise LayoutRefused(
                f"layout: nothing of this model is cut over {', '.join(idle)}; set "
                f"{' and '.join(f'{axis}=1' for axis in idle)}, or give the layout a rule for it"
            )
        if parameters and sum(size for size, _ in whole) > self.tolerance * large:
            share = sum(size for size, _ in whole) / large
            raise LayoutRefused(
                listed(
                    f"layout: {share:.0%} of the parameters would lie whole on every device, more "
                    f"than the tolerance of {self.tolerance:.0%}; change the mesh "
                    f"({' x '.join(f'{a} {mesh.shape[a]}' for a in asked)}) so that it divides "
                    "them, or raise the tolerance. The largest:",
                    [name for _, name in sorted(whole, reverse=True)[:_LARGEST]],
                )
            )


def _mesh_axes(spec: PartitionSpec) -> set[str]:
    found: set[str] = set()
    for part in spec:
        found |= {part} if isinstance(part, str) else set(part or ())
    return found
