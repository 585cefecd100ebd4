"""A mesh and a layout together: where each array goes, and which rows this process reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dew.data import DataPartition
from dew.errors import InputRefused
from dew.nn.constraint import constrained_by
from dew.placement.layout import Axes, Layout
from dew.placement.mesh import BATCH_AXES, MeshSpec


@dataclass(frozen=True)
class Placement:
    """Where the arrays of a run go.

    Args:
        spec: the sizes of the mesh.
        layout: the rules.
        axes: the parameters' logical axes, `(("layers/mlp/up/kernel", ("layers", ...)), ...)`.
    """

    spec: MeshSpec
    layout: Layout
    axes: tuple[tuple[str, Axes], ...] = ()

    @classmethod
    def of(cls, spec: MeshSpec, layout: Layout, logical: Mapping[str, Any]) -> Placement:
        """Return the placement for an objective's `logical_axes`: collection to a tree of axes."""
        known: dict[str, Axes] = {}
        for tree in logical.values():
            flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_axes)
            known.update({_name(path): axes for path, axes in flat})
        return cls(spec, layout, tuple(sorted(known.items())))

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh; the first look at it opens the backend."""
        return self.spec.build()

    @property
    def whole(self) -> NamedSharding:
        """What puts all of an array on each device."""
        return NamedSharding(self.mesh, PartitionSpec())

    def shardings(self, tree: Any) -> Any:
        """Return the sharding of every leaf of a state or of variables, or of their shapes.

        A leaf is cut as the parameter whose path its own path ends with, so moments, averages
        and pending gradients lie where their parameters do; the rest lies whole everywhere.
        """
        return jax.tree_util.tree_map_with_path(self._sharding, tree)

    def shaped(self, shapes: Any) -> Any:
        """Return shapes with their shardings, a template to restore by."""
        return jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
            shapes,
            self.shardings(shapes),
        )

    def check(self, params: Any) -> None:
        """Refuse parameters that the mesh cannot cut; see `Layout.check`.

        Args:
            params: the variables, values or shapes.
        """
        flat, _ = jax.tree_util.tree_flatten_with_path(params)
        leaves = {_name(path): (tuple(leaf.shape), self._axes(_name(path))) for path, leaf in flat}
        cuts = ("batch", "length") if self.axes else ("batch",)
        self.layout.check(self.mesh, leaves, activations=cuts)

    def put(self, tree: Any) -> Any:
        """Return a tree's arrays placed, each device reading only its own part.

        Args:
            tree: host arrays equal on every process, or arrays already on devices.
        """
        return jax.tree.map(put, tree, self.shardings(tree))

    def batch(self, fields: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Return this process's rows as its part of a global batch, in memory of their own."""
        return {name: self._field(name, np.array(value)) for name, value in fields.items()}

    @cached_property
    def share(self) -> DataPartition:
        """Which rows of every global batch this process reads.

        Raises:
            InputRefused: a mesh on which two processes' rows overlap in part.
        """
        return _share(self._slots(), jax.process_index())

    @cached_property
    def local_slots(self) -> int:
        """Into how many parts the rows of this process are cut."""
        return len(self._slots()[jax.process_index()])

    def traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with the layout's constraints on its activations when it is traced."""

        def constrained(*arguments: Any) -> Any:
            with self.constraining():
                return function(*arguments)

        return constrained

    @contextmanager
    def constraining(self) -> Any:
        """Constrain the activations of what is traced inside."""
        with constrained_by(self._activation):
            yield

    def _activation(self, axes: Axes, shape: tuple[int, ...]) -> NamedSharding:
        return NamedSharding(self.mesh, self.layout.activation(axes, shape, self.mesh))

    def _sharding(self, path: Any, leaf: Any) -> NamedSharding:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return self.whole
        spec = self.layout.spec(self._axes(_name(path)), tuple(leaf.shape), self.mesh)
        return NamedSharding(self.mesh, spec)

    def _axes(self, path: str) -> Axes | None:
        """Return the axes of the parameter whose path is the longest end of `path`."""
        named = self.layout.named(path)
        if named is not None:
            return named
        known = self._by_path
        parts = path.split("/")
        for start in range(len(parts)):
            axes = known.get("/".join(parts[start:]))
            if axes is not None:
                return axes
        return None

    @cached_property
    def _by_path(self) -> dict[str, Axes]:
        return dict(self.axes)

    def _field(self, name: str, value: np.ndarray) -> jax.Array:
        if not value.ndim:
            return jax.device_put(value, self.whole)
        if len(value) % self.local_slots:
            raise InputRefused(
                f"batch: {len(value)} rows of {name!r} on this process do not divide over its "
                f"{self.local_slots} parts of the mesh; choose a batch that does"
            )
        sharding = NamedSharding(self.mesh, PartitionSpec(BATCH_AXES))
        if jax.process_count() == 1:
            return jax.device_put(value, sharding)
        return jax.make_array_from_process_local_data(sharding, value)

    def _slots(self) -> dict[int, tuple[int, ...]]:
        """Return the parts of a batch that each process holds, by process."""
        devices = self.mesh.devices
        flat = devices.reshape(devices.shape[0] * devices.shape[1], -1)
        held: dict[int, set[int]] = {}
        for slot, row in enumerate(flat):
            for device in row:
                held.setdefault(device.process_index, set()).add(slot)
        return {process: tuple(sorted(slots)) for process, slots in held.items()}


def _share(slots: Mapping[int, tuple[int, ...]], process: int) -> DataPartition:
    shares = sorted(set(slots.values()))
    if sum(map(len, shares)) != len({slot for share in shares for slot in share}):
        raise InputRefused(
            "mesh: the processes' parts of a batch overlap without being equal; choose axes that "
            "divide the devices of a process, or a multiple of them"
        )
    readers = sorted(p for p, held in slots.items() if held == slots[process])
    return DataPartition(
        index=shares.index(slots[process]),
        count=len(shares),
        readers=len(readers),
        reader=readers.index(process),
    )


def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Return one array placed, each device reading only its own part.

    Args:
        leaf: a host array equal on every process, or an array already on devices.
        sharding: where it goes.
    """
    if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
        return leaf
    if jax.process_count() == 1 or (isinstance(leaf, jax.Array) and not _local(leaf)):
        return jax.device_put(leaf, sharding)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = jax.random.key_data(leaf)
        return jax.random.wrap_key_data(put(words, sharding), impl=jax.random.key_impl(leaf))
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _local(leaf: jax.Array) -> bool:
    return leaf.is_fully_addressable


def _is_axes(node: Any) -> bool:
    return isinstance(node, tuple)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
