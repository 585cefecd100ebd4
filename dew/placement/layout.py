"""The layout: which mesh axes cut which axes of a parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from jax.sharding import Mesh, PartitionSpec

from dew.errors import InputRefused, listed, nearest, shown
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
rule stays whole; `features` is the longest axis that divides, of a leaf that names none."""

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
        names: pattern of a parameter's path or of its end, such as `*.q_proj.weight` or
            `h.*.mlp.*.weight`, to the logical axes of the leaves that match; `*` stands for
            anything, the first match counts, and it goes before what the model itself says. A
            traced module's parameters are named as torch names them.
    """

    rules: tuple[tuple[str, tuple[str, ...]], ...] = RULES
    min_shard: int = 65536
    tolerance: float = 0.02
    names: tuple[tuple[str, Axes], ...] = ()

    def named(self, path: str) -> Axes | None:
        """Return the logical axes that `names` gives to a parameter, None where it gives none."""
        parts = path.split("/")
        ends = ["/".join(parts[start:]) for start in range(len(parts))]
        for pattern, axes in self.names:
            if any(fnmatchcase(end, pattern) for end in ends):
                return axes
        return None

    def spec(self, axes: Axes | None, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
        """Return how a parameter is cut.

        Args:
            axes: the logical name of each axis, or None where the leaf names none.
            shape: of the leaf.
            mesh: with the axes of `MeshSpec`.
        """
        if math.prod(shape) < self.min_shard:
            return PartitionSpec()
        if axes is not None and len(axes) == len(shape):
            return self.activation(axes, shape, mesh)
        for longest in sorted(range(len(shape)), key=lambda at: -shape[at]):
            guess = tuple("features" if at == longest else None for at in range(len(shape)))
            cut = self.activation(guess, shape, mesh)
            if _mesh_axes(cut):
                return cut
        return PartitionSpec()

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
            LayoutRefused: a mesh axis that nothing of this model is cut over, a pattern of
                `names` that no parameter matches or whose axes are not as many as a parameter's,
                or more than `tolerance` of the larger leaves' elements whole; the largest are
                named.
        """
        self._check_names(leaves)
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

    def _check_names(self, leaves: Mapping[str, tuple[tuple[int, ...], Axes | None]]) -> None:
        problems = []
        for pattern, axes in self.names:
            alone = Layout(names=((pattern, axes),))
            found = [path for path in leaves if alone.named(path) is not None]
            if not found:
                problems.append(f"no parameter matches {shown(pattern)}{nearest(pattern, leaves)}")
            problems += [
                f"{path} {list(leaves[path][0])} has {len(leaves[path][0])} axes, "
                f"{shown(pattern)} names {len(axes)}"
                for path in found
                if len(leaves[path][0]) != len(axes)
            ]
        if problems:
            raise LayoutRefused(listed("layout: names do not fit the parameters:", problems))


def _mesh_axes(spec: PartitionSpec) -> set[str]:
    found: set[str] = set()
    for part in spec:
        found |= {part} if isinstance(part, str) else set(part or ())
    return found
