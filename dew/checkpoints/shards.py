"""Which boxes of which leaves a process writes, and their copies in its host memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dew.artifacts.coordination import pool_size, rank
from dew.checkpoints.leaves import Path as LeafPath
from dew.checkpoints.leaves import is_key, shape_of

Box = tuple[tuple[int, int], ...]
"""Start and stop along each axis."""

CHUNK_BYTES = 16 * 2**20
"""The most that a chunk on disk holds: what a reader of a small slice has to read with it."""


@dataclass(frozen=True)
class Piece:
    """A box of a leaf, and its values on the host."""

    box: Box
    values: np.ndarray


@dataclass(frozen=True)
class HostLeaf:
    """What this process writes of a leaf.

    Attributes:
        shape: of the whole leaf.
        dtype: as stored; a typed PRNG key counts as its integers.
        chunk: how it is cut on disk; no chunk lies in two processes' boxes.
        pieces: this process's boxes, none where others write them all.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    chunk: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def elements(self) -> int:
        """How many of the leaf's values this process writes."""
        return sum(piece.values.size for piece in self.pieces)


def host_leaves(leaves: Mapping[LeafPath, Any], *, all_held: bool = False) -> dict[LeafPath, Any]:
    """Copy to host memory what this process writes; a donated step may follow.

    Each box is written by one of the processes that hold it, the one with the fewest bytes so
    far, so that replicas share the work. What lies whole on every process (a NumPy array, an
    array on the process's own devices) is taken to be equal on all, and process 0 writes it.

    Args:
        leaves: arrays by path, the same on all processes.
        all_held: take every box that lies on this process's devices, whoever else holds it.

    Returns:
        `HostLeaf` by path, for every leaf.
    """
    plan = {path: _boxes_here(leaf) for path, leaf in leaves.items()}
    if not all_held:
        plan = _dealt(leaves, plan)
    held = {path: list(_data_of(leaf, plan[path])) for path, leaf in leaves.items()}
    for arrays in held.values():
        for data in arrays:
            data.copy_to_host_async()
    return {
        path: _host_leaf(leaf, plan[path], [_owned(data) for data in held[path]])
        for path, leaf in leaves.items()
    }


def box_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    """Return the box that a tuple of slices means in an array of `shape`."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def boxes_on(sharding: Any, shape: tuple[int, ...]) -> dict[Any, Box]:
    """Return the box of an array that each of this process's devices holds."""
    indices = sharding.addressable_devices_indices_map(shape)
    return {device: box_of(index or (), shape) for device, index in indices.items()}


def slices_of(box: Box) -> tuple[slice, ...]:
    """Return a box as an index."""
    return tuple(slice(start, stop) for start, stop in box)


def volume_of(box: Box) -> int:
    """Return how many values a box holds."""
    return math.prod(stop - start for start, stop in box)


def whole_box(shape: tuple[int, ...]) -> Box:
    """Return the box of all of an array."""
    return tuple((0, size) for size in shape)


@functools.lru_cache(maxsize=4096)
def holders(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> dict[Box, tuple[int, ...]]:
    """Return which processes hold which boxes of an array, both in order."""
    found: dict[Box, set[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        found.setdefault(box_of(index, shape), set()).add(device.process_index)
    return {box: tuple(sorted(found[box])) for box in sorted(found)}


def chunk_of(shape: tuple[int, ...], boxes: list[Box], itemsize: int) -> tuple[int, ...]:
    """Return a chunk of at most `CHUNK_BYTES` that lies in one box wherever it is put.

    Args:
        shape: of the leaf.
        boxes: how its values are spread over processes and devices.
        itemsize: bytes of a value.
    """
    chunk, held = [], itemsize
    cuts = [math.gcd(*(box[axis][0] for box in boxes)) for axis in range(len(shape))]
    sizes = [cut or max(size, 1) for cut, size in zip(cuts, shape, strict=True)]
    held *= math.prod(sizes)
    for cut, size in zip(cuts, sizes, strict=True):
        wanted = max(1, size * CHUNK_BYTES // held) if held > CHUNK_BYTES else size
        if cut and wanted < size:
            # Along a cut axis only a divisor stays within the boxes; a far smaller one is no gain.
            divisor = next(part for part in range(wanted, 0, -1) if size % part == 0)
            wanted = divisor if divisor * 4 > wanted else size
        held = held // size * wanted
        chunk.append(wanted)
    return tuple(chunk)


def is_spread(leaf: Any) -> bool:
    """Tell whether a leaf is one array over several processes."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def _boxes_here(leaf: Any) -> tuple[Box, ...]:
    """Return the boxes of a leaf that this process holds."""
    if not isinstance(leaf, jax.Array):
        return (whole_box(np.shape(leaf)),)
    here = holders(leaf.sharding, leaf.shape)
    if leaf.is_fully_addressable:
        return tuple(here)
    return tuple(box for box, processes in here.items() if rank() in processes)


def _dealt(
    leaves: Mapping[LeafPath, Any], here: Mapping[LeafPath, tuple[Box, ...]]
) -> dict[LeafPath, tuple[Box, ...]]:
    load, mine = [0] * pool_size(), rank()
    plan: dict[LeafPath, tuple[Box, ...]] = {}
    for path, leaf in leaves.items():
        if not is_spread(leaf):
            plan[path] = here[path] if mine == 0 else ()
            load[0] += np.dtype(shape_of(leaf).dtype).itemsize * math.prod(np.shape(leaf))
            continue
        taken = []
        for box, processes in holders(leaf.sharding, leaf.shape).items():
            writer = min(processes, key=lambda process: (load[process], process))
            load[writer] += leaf.dtype.itemsize * volume_of(box)
            if writer == mine:
                taken.append(box)
        plan[path] = tuple(taken)
    return plan


def _data_of(leaf: Any, boxes: tuple[Box, ...]) -> Iterator[jax.Array]:
    """Yield the arrays on this process's devices that hold `boxes`, in that order."""
    if not isinstance(leaf, jax.Array):
        return
    held: dict[Box, jax.Array] = {}
    for shard in leaf.addressable_shards:
        # The index of a piece of typed keys also counts the axes of their integers.
        held.setdefault(box_of(shard.index[: leaf.ndim], leaf.shape), shard.data)
    for box in boxes:
        yield jax.random.key_data(held[box]) if is_key(leaf) else held[box]


def _host_leaf(leaf: Any, boxes: tuple[Box, ...], values: list[np.ndarray]) -> HostLeaf:
    if isinstance(leaf, jax.Array):
        spread = list(holders(leaf.sharding, leaf.shape))
        whole = shape_of(leaf)
        shape, dtype = whole.shape, np.dtype(whole.dtype)
    else:
        array = np.array(leaf)
        values, spread = [array] * len(boxes), [whole_box(array.shape)]
        shape, dtype = array.shape, array.dtype
    tail = whole_box(shape[len(spread[0]) :])  # a key's integers lie on axes after its own
    pieces = zip(boxes, values, strict=True)
    return HostLeaf(
        shape,
        dtype,
        chunk_of(shape, [box + tail for box in spread], dtype.itemsize),
        tuple(Piece(box + tail, part) for box, part in pieces),
    )


def _owned(data: jax.Array) -> np.ndarray:
    """Return a device array's values in host memory that no computation will write to."""
    on_host = all(device.platform == "cpu" for device in data.devices())
    return np.array(data) if on_host else np.asarray(data)
