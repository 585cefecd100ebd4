"""The arrays inside a checkpoint: TensorStore zarr arrays in one OCDBT store a process, merged.

They lie as orbax lays them, under its names. They are written here and not by orbax, since every
file has to be synced before the commit, a process that fails must keep nobody waiting, and all
processes are to raise the same error.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dew.checkpoints.leaves import Path as LeafPath
from dew.checkpoints.shards import Box, HostLeaf, Piece, boxes_on, slices_of, volume_of, whole_box

FOLDER = "dew/tree"
STATE, DATA = f"{FOLDER}/state", f"{FOLDER}/data"

WRITE_AHEAD = 256 * 2**20
"""Bytes that are on their way to the disk at a time, in memory beside the values themselves."""

READ_AHEAD = 32 * 2**20
"""Bytes read before the leaf that they follow is placed; one larger leaf is read whole."""

_FILE_BYTES = 64 * 2**20
_CONFIG = {
    # Descriptions of arrays go into the tree's nodes, values into files of their own.
    "max_inline_value_bytes": 1024,
    "max_decoded_node_bytes": 100_000_000,
    "manifest_kind": "single",
}
# Stored as a wider type, since TensorStore has no name for it.
_STORED_AS = {"uint4": "uint8", "uint2": "uint8"}


def process_folder(folder: Path, process: int) -> Path:
    """Return where one process writes its part of the state."""
    return folder / STATE / f"ocdbt.process_{process}"


def write_pieces(folder: Path, process: int, leaves: Mapping[LeafPath, HostLeaf]) -> None:
    """Write a process's pieces into its own store; nobody else touches its files.

    Args:
        folder: the checkpoint on its way in.
        process: the number of this process.
        leaves: what it writes of each leaf.
    """
    base, names = process_folder(folder, process), _names(leaves)
    for group in _groups(leaves):
        _write(base, group, names)


def merge(folder: Path, processes: int) -> None:
    """Make one store of the processes' stores: it refers to their files, and copies none."""
    import tensorstore as ts

    parent = ts.KvStore.open(_store(folder / STATE, writing=True), context=_context()).result()
    transaction = ts.Transaction(atomic=True)
    for process in range(processes):
        base = process_folder(folder, process)
        if base.is_dir():
            part = ts.KvStore.open(_store(base), context=_context()).result()
            part.experimental_copy_range_to(parent.with_transaction(transaction)).result()
    transaction.commit_async().result()


def write_data(folder: Path, rows: Mapping[str, np.ndarray]) -> None:
    """Write the data rows of all processes."""
    leaves = {}
    for name, array in rows.items():
        box = whole_box(array.shape)
        leaves[(name,)] = HostLeaf(array.shape, array.dtype, array.shape, (Piece(box, array),))
    _write(folder / DATA, leaves, _names(leaves))


def read_data(folder: Path) -> dict[str, np.ndarray]:
    """Read the data rows: `index`, `count`, `length` [P] and `position` [P, longest] bytes."""
    names = ("index", "count", "length", "position")
    return {name: _array(folder / DATA, name).read().result() for name in names}


def spelling(paths: Iterable[LeafPath]) -> Callable[[LeafPath], LeafPath]:
    """Return what gives each path of a state as it is spelled on disk.

    That is as it is, unless names that hold dots make two leaves one once their parts are joined
    by dots: then dots, slashes and percent signs within the names of that state are spelled out.

    Args:
        paths: of every leaf of the state.
    """
    known = list(paths)
    if len({".".join(path) for path in known}) == len(known):
        return lambda path: path
    return lambda path: tuple(_spelled_out(part) for part in path)


def read_tree(
    folder: Path, stored: Mapping[LeafPath, Any], wanted: Mapping[LeafPath, Any]
) -> dict[LeafPath, Any]:
    """Read the wanted leaves, of each the boxes that this process's devices hold.

    Args:
        folder: the checkpoint.
        stored: shape and dtype of every leaf it holds.
        wanted: `jax.ShapeDtypeStruct` by path, a jax array where it has a sharding, host otherwise.
    """
    found: dict[LeafPath, Any] = {}
    under_way: deque[tuple[LeafPath, _Reading]] = deque()
    held, names = 0, _names(stored)
    for path, leaf in wanted.items():
        sharding = getattr(leaf, "sharding", None)
        reading = _Reading.begin(folder, names[path], stored[path], sharding)
        under_way.append((path, reading))
        held += reading.bytes
        while held > READ_AHEAD:
            first, done = under_way.popleft()
            found[first] = done.value()
            held -= done.bytes
    for path, reading in under_way:
        found[path] = reading.value()
    return found


@dataclass(frozen=True)
class _Reading:
    """One leaf on its way from the disk; a chunk that lies in several boxes is read once."""

    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: jax.sharding.Sharding | None
    parts: Mapping[Box, Any]

    @classmethod
    def begin(cls, folder: Path, name: str, stored: Any, sharding: Any) -> _Reading:
        shape, dtype = tuple(stored.shape), np.dtype(stored.dtype)
        boxes = {whole_box(shape)}
        if sharding is not None:
            boxes = set(boxes_on(sharding, shape).values())
        parts: dict[Box, Any] = dict.fromkeys(boxes)
        if 0 not in shape:
            array = _array(folder / STATE, name)
            parts = {box: array[slices_of(box)].read() for box in parts}
        return cls(shape, dtype, sharding, parts)

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * sum(volume_of(box) for box in self.parts)

    def value(self) -> Any:
        values = {box: self._read(box) for box in self.parts}
        if self.sharding is None:
            return values[whole_box(self.shape)]
        arrays = [
            jax.device_put(values[box], device)
            for device, box in boxes_on(self.sharding, self.shape).items()
        ]
        return jax.make_array_from_single_device_arrays(self.shape, self.sharding, arrays)

    def _read(self, box: Box) -> np.ndarray:
        future = self.parts[box]
        if future is None:
            return np.zeros([stop - start for start, stop in box], self.dtype)
        return np.asarray(future.result()).astype(self.dtype, copy=False)


def _groups(leaves: Mapping[LeafPath, HostLeaf]) -> Iterator[dict[LeafPath, HostLeaf]]:
    """Yield the leaves that this process writes, some `WRITE_AHEAD` bytes at a time."""
    group: dict[LeafPath, HostLeaf] = {}
    held = 0
    for path, leaf in leaves.items():
        if not leaf.pieces:
            continue
        group[path] = leaf
        held += leaf.elements * leaf.dtype.itemsize
        if held >= WRITE_AHEAD:
            yield group
            group, held = {}, 0
    if group:
        yield group


def _write(base: Path, leaves: Mapping[LeafPath, HostLeaf], names: Mapping[LeafPath, str]) -> None:
    import tensorstore as ts

    transaction = ts.Transaction()
    copied = []
    for path, leaf in leaves.items():
        array = ts.open(
            _array_spec(base, names[path], leaf), context=_context(), transaction=transaction
        ).result()
        for piece in leaf.pieces:
            values = piece.values.astype(array.dtype.numpy_dtype, copy=False)
            written = array[slices_of(piece.box)].write(
                values, can_reference_source_data_indefinitely=True
            )
            copied.append(written.copy)
    for future in copied:
        future.result()
    transaction.commit_async().result()


def _array(base: Path, name: str) -> Any:
    import tensorstore as ts

    store = {**_store(base), "path": f"{name}/"}
    # A chunk that nobody wrote is an error, not a chunk of zeros.
    spec = {"driver": "zarr3", "kvstore": store, "fill_missing_data_reads": False}
    return ts.open(spec, open=True, read=True, context=_context()).result()


def _array_spec(base: Path, name: str, leaf: HostLeaf) -> dict[str, Any]:
    data_type = _STORED_AS.get(leaf.dtype.name, leaf.dtype.name)
    codec: dict[str, Any] = {"name": "bytes"}
    if leaf.dtype.itemsize > 1:
        codec["configuration"] = {"endian": "little"}
    return {
        "driver": "zarr3",
        "kvstore": {**_store(base, writing=True), "path": f"{name}/"},
        "metadata": {
            "shape": list(leaf.shape),
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(leaf.chunk)}},
            # Weights and moments hardly compress; it would take the cores from the training.
            "codecs": [codec],
        },
        "store_data_equal_to_fill_value": True,
        "create": True,
        "open": True,
    }


def _store(base: Path, *, writing: bool = False) -> dict[str, Any]:
    # One process writes a store, into a folder that nobody reads yet: no locks.
    file = {"driver": "file", "path": f"{base}/", "file_io_locking": {"mode": "non_atomic"}}
    store: dict[str, Any] = {"driver": "ocdbt", "base": file}
    if writing:
        store |= {"config": _CONFIG, "assume_config": True, "target_data_file_size": _FILE_BYTES}
    return store


def _names(paths: Iterable[LeafPath]) -> dict[LeafPath, str]:
    known = list(paths)
    spelled = spelling(known)
    return {path: ".".join(spelled(path)) for path in known}


def _spelled_out(part: str) -> str:
    return part.replace("%", "%25").replace(".", "%2E").replace("/", "%2F")


@functools.cache
def _context() -> Any:
    import tensorstore as ts

    # The commit syncs every file once, and before the folder gets its name.
    return ts.Context({"file_io_sync": False, "file_io_concurrency": {"limit": 4}})
