"""The weight table: rows that carry tensors into dew's tree and back out of it."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import ml_dtypes
import numpy as np

from bridges.moves import KEEP, Move
from dew.errors import WeightMismatch, listed, shown

LAYER, EXPERT = "{layer}", "{expert}"
ALIGNMENT = 64  # bytes; XLA takes a CPU buffer over without a copy from this alignment on
CHUNK_BYTES = 8 << 20
TILE, TILE_ROOM = (128, 256), 16
WORKERS = 2
# A row past this many layers is not written out name by name when the layers do not fit.
LISTED_LAYERS = 10_000
LARGEST_LEAF = 2**60
LEFT_OVER = "left over   "
SHOWN_EXTRA, SHOWN_FOLDED = 20, 80
SHOWN_TENSORS = 18  # with heading and count a message of 20 lines


class Tensors(Protocol):
    """Named tensors, such as an open checkpoint."""

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        ...

    def info(self, name: str) -> Any:
        """Return what has `shape` and `dtype`."""
        ...

    def read(self, name: str) -> np.ndarray:
        """Return one tensor."""
        ...

    def release(self, name: str) -> None:
        """Take back the memory behind a tensor that has been copied."""
        ...


@dataclass(frozen=True)
class Row:
    """One line of a weight table.

    Attributes:
        theirs: the tensor's name; `{layer}` repeats the row for every layer, `{expert}` for
            every expert of it.
        ours: the leaf's path, or the paths of several leaves that one tensor holds. The leaf of a
            repeated row has a leading axis of layers, and then of experts.
        move: how the tensor becomes the leaf of one layer and expert, and back.
    """

    theirs: str
    ours: str | tuple[str, ...]
    move: Move = KEEP

    @property
    def leaves(self) -> tuple[str, ...]:
        """The paths of the leaves."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    @property
    def stacked(self) -> int:
        """How many leading axes of the leaf count tensors: layers, experts."""
        return (LAYER in self.theirs) + (EXPERT in self.theirs)


Bounds = tuple[tuple[int, int], ...]
Index = tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """A part of a leaf that is filled on this host.

    Attributes:
        bounds: which part, first and last + 1 of each axis.
        buffer: its memory.
    """

    bounds: Bounds
    buffer: np.ndarray


def into_tree(
    rows: Sequence[Row],
    tensors: Tensors,
    shapes: Mapping,
    dtype: Any,
    *,
    shardings: Mapping[str, jax.sharding.Sharding] | None = None,
) -> dict:
    """Return dew's parameters, filled from `tensors`.

    Names and shapes are checked from the headers before anything is allocated. Each leaf is then
    allocated once and filled in place by two threads, and jax takes the buffer over as it is: at
    no time is there a second copy of the model. With shardings, a process allocates only what its
    own devices hold, and beside that there is one tensor a thread.

    Args:
        rows: the weight table.
        tensors: the checkpoint.
        shapes: the parameters' tree, of anything with `shape` and `dtype` (`jax.eval_shape`).
        dtype: the dtype of every floating leaf; None for that of `shapes`.
        shardings: a leaf's path to where it goes; None puts all on the default device.

    Returns:
        The nested dict of jax arrays.

    Raises:
        WeightMismatch: missing, left-over and misshapen tensors, all in one message.
    """
    leaves = flat(shapes)
    check(rows, tensors, leaves)
    places = shardings or dict.fromkeys(leaves)
    targets = {path: _targets(leaf, dtype, places[path]) for path, leaf in leaves.items()}
    counts: dict[str, int] = {}
    with ThreadPoolExecutor(WORKERS) as pool:
        jobs = [
            (name, pool.submit(_fill, tensors, name, row, index, leaves, targets))
            for name, row, index in _slots(rows, leaves)
        ]
        for name, job in jobs:
            counts[name] = job.result()
    _warn_not_finite({name: count for name, count in counts.items() if count})
    return nested(
        {
            path: _array(tuple(leaf.shape), targets[path], places[path])
            for path, leaf in leaves.items()
        }
    )


def out_of_tree(rows: Sequence[Row], params: Mapping) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every tensor of the table from dew's parameters, one at a time.

    Args:
        rows: the weight table.
        params: the nested dict that `into_tree` returns; only one leaf is on the host at a time.

    Yields:
        The tensor's name and a C-contiguous array in the leaf's dtype.

    Raises:
        WeightMismatch: the tree has other leaves than the table.
    """
    leaves = flat(params)
    problems = _leaf_problems(rows, leaves)
    if problems:
        raise WeightMismatch(listed("the parameters do not fit the weight table:", problems))
    for row in rows:
        parts = [np.asarray(leaves[path]) for path in row.leaves]
        for index in np.ndindex(parts[0].shape[: row.stacked]):
            moved = [row.move.out(part[index]) for part in parts]
            whole = moved[0] if len(moved) == 1 else row.move.join(moved)
            # numpy makes an array of one out of a scalar.
            yield _name(row, index), np.ascontiguousarray(whole).reshape(whole.shape)


def tensor_shapes(rows: Sequence[Row], leaves: Mapping[str, Any]) -> Iterator[tuple[str, tuple]]:
    """Yield name and shape of every tensor, in the order of `out_of_tree`, without any data."""
    for name, row, _ in _slots(rows, leaves):
        yield name, _tensor_shape(row, leaves)


def check(rows: Sequence[Row], tensors: Tensors, leaves: Mapping[str, Any]) -> None:
    """Compare the table with the headers.

    Args:
        rows: the weight table.
        tensors: the checkpoint; nothing is read from it but names, shapes and dtypes.
        leaves: path to anything with `shape`.

    Raises:
        WeightMismatch: everything that does not fit, in one message.
    """
    names = tensors.names()
    problems = _leaf_problems(rows, leaves)
    problems += _size_problems(leaves)
    if not problems:
        problems = layer_problems(rows, names, _layers(rows, leaves))
        if not problems or _layers(rows, leaves) <= LISTED_LAYERS:
            problems += _tensor_problems(rows, tensors, leaves)
    if problems:
        count = f"{len(problems)} tensor{'s do' if len(problems) > 1 else ' does'}"
        lines = _folded(problems)
        raise WeightMismatch(listed(f"{count} not fit the model:", lines, SHOWN_TENSORS))


def _folded(problems: list[str]) -> list[str]:
    """Return the problems with the left-over tensors on one line, if they are many."""
    extra = [line.removeprefix(LEFT_OVER) for line in problems if line.startswith(LEFT_OVER)]
    if len(problems) <= SHOWN_TENSORS or len(extra) < 2:
        return problems
    names = ", ".join(name[:SHOWN_FOLDED] for name in extra[:SHOWN_EXTRA])
    more = f" and {len(extra) - SHOWN_EXTRA} more" if len(extra) > SHOWN_EXTRA else ""
    rest = [line for line in problems if not line.startswith(LEFT_OVER)]
    return [f"{LEFT_OVER}{names}{more}", *rest]


def layer_problems(rows: Sequence[Row], names: Sequence[str], layers: int) -> list[str]:
    """Return a line when the names hold fewer layers than wanted; costs the file, not the wish."""
    patterns = [name_pattern(row) for row in rows if LAYER in row.theirs]
    starts = tuple({row.theirs.split(LAYER)[0] for row in rows if LAYER in row.theirs})
    layered = [name for name in names if name.startswith(starts)]
    found = {int(m[1]) for name in layered for p in patterns if (m := p.fullmatch(name))}
    if not patterns or len(found) >= layers:
        return []
    return [f"layers      config.json asks for {layers}, the file holds {len(found)}"]


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an uninitialised array whose first byte lies at a multiple of `ALIGNMENT`."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def flat(tree: Mapping, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a nested dict by their path, as in `layers/mlp/up/kernel`."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        leaves.update(flat(value, f"{path}/") if isinstance(value, Mapping) else {path: value})
    return leaves


def nested(leaves: Mapping[str, Any]) -> dict:
    """Return the nested dict of `flat`'s paths."""
    tree: dict = {}
    for path, value in leaves.items():
        *folders, last = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = value
    return tree


def not_finite(values: np.ndarray) -> int:
    """Return how many values are NaN or infinite; the common answer 0 costs one sum."""
    if values.dtype == ml_dtypes.bfloat16:
        exponents = values.view(np.uint16) & np.uint16(0x7F80)
        return int(np.count_nonzero(exponents == 0x7F80))
    if not np.issubdtype(values.dtype, np.floating):
        return 0
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return 0
    return int(values.size - np.count_nonzero(np.isfinite(values)))


def _slots(rows: Sequence[Row], leaves: Mapping) -> Iterator[tuple[str, Row, Index]]:
    """Yield name, row and index into the leaf of every tensor of the table."""
    for row in rows:
        for index in np.ndindex(tuple(leaves[row.leaves[0]].shape[: row.stacked])):
            yield _name(row, index), row, index


def _name(row: Row, index: Index) -> str:
    places = (LAYER, EXPERT) if LAYER in row.theirs else (EXPERT,)
    name = row.theirs
    for place, number in zip(places, index, strict=False):
        name = name.replace(place, str(number))
    return name


def name_pattern(row: Row) -> re.Pattern[str]:
    """Return what matches the names of a row's tensors; its group, where any, is the layer."""
    text = re.escape(row.theirs).replace(re.escape(EXPERT), r"\d+")
    return re.compile(text.replace(re.escape(LAYER), r"(0|[1-9]\d{0,8})"))


def _layers(rows: Sequence[Row], leaves: Mapping) -> int:
    return max((leaves[r.leaves[0]].shape[0] for r in rows if LAYER in r.theirs), default=0)


def _leaf_problems(rows: Sequence[Row], leaves: Mapping) -> list[str]:
    """Return a line for each leaf without a row and each row without a leaf."""
    known = {path for row in rows for path in row.leaves}
    return [
        *(f"no row      for the leaf {path}" for path in leaves if path not in known),
        *(f"no leaf     {path} in the tree" for path in known if path not in leaves),
    ]


def _size_problems(leaves: Mapping) -> list[str]:
    """Return a line for each leaf that no machine could hold."""
    return [
        f"too large   {path} {tuple(leaf.shape)}, as config.json asks"
        for path, leaf in leaves.items()
        if math.prod(leaf.shape) > LARGEST_LEAF
    ]


def _tensor_shape(row: Row, leaves: Mapping) -> tuple[int, ...]:
    """Return the shape of a row's tensor: its move, applied to arrays that hold no data."""
    parts = []
    for path in row.leaves:
        shape = tuple(leaves[path].shape)[row.stacked :]
        parts.append(list(row.move.out(np.broadcast_to(np.int8(0), shape)).shape))
    whole = parts[0]
    whole[row.move.axis : row.move.axis + 1] = (
        [sum(part[row.move.axis] for part in parts)] if whole else []
    )
    return tuple(whole)


def _tensor_problems(rows: Sequence[Row], tensors: Tensors, leaves: Mapping) -> list[str]:
    """Return a line for each missing, misshapen and left-over tensor."""
    left = dict.fromkeys(tensors.names())
    missing, misshapen = [], []
    shapes = {row.theirs: _tensor_shape(row, leaves) for row in rows}
    for name, row, _ in _slots(rows, leaves):
        wanted, leaf = shapes[row.theirs], " + ".join(row.leaves)
        if name not in left:
            missing.append(f"missing     {name} (for {leaf} {wanted})")
            continue
        del left[name]
        info = tensors.info(name)
        if tuple(info.shape) != wanted:
            misshapen.append(f"misshapen   {name}: wanted {wanted}, found {tuple(info.shape)}")
        elif not _is_floating(np.dtype(info.dtype)):
            misshapen.append(f"wrong dtype {name}: wanted floating point, found {info.dtype}")
    extra = [f"{LEFT_OVER}{shown(n)[1:-1]} {tuple(tensors.info(n).shape)}" for n in left]
    return missing + misshapen + extra


def _is_floating(dtype: np.dtype) -> bool:
    return np.issubdtype(dtype, np.floating) or dtype.name.startswith(("bfloat", "float"))


def _targets(leaf: Any, dtype: Any, place: jax.sharding.Sharding | None) -> list[Target]:
    """Return the parts of a leaf that this host's devices hold, each once, with new memory."""
    shape, kind = tuple(leaf.shape), np.dtype(dtype or leaf.dtype)
    parts = {_bounds((slice(None),) * len(shape), shape)}
    if place is not None:
        parts = set(_held(place, shape).values())
    return [
        Target(part, aligned_empty(tuple(stop - start for start, stop in part), kind))
        for part in sorted(parts)
    ]


def _array(
    shape: tuple[int, ...], targets: Sequence[Target], place: jax.sharding.Sharding | None
) -> jax.Array:
    """Return a leaf whose parts are filled."""
    if place is None:
        return jax.device_put(targets[0].buffer)
    buffers = {target.bounds: target.buffer for target in targets}
    held = _held(place, shape)
    arrays = [jax.device_put(buffers[part], device) for device, part in held.items()]
    return jax.make_array_from_single_device_arrays(shape, place, arrays)


def _held(place: jax.sharding.Sharding, shape: tuple[int, ...]) -> dict[Any, Bounds]:
    """Return this host's devices and the part that each holds."""
    indices = place.addressable_devices_indices_map(shape)
    return {device: _bounds(index, shape) for device, index in indices.items() if index is not None}


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _fill(
    tensors: Tensors,
    name: str,
    row: Row,
    index: Index,
    leaves: Mapping[str, Any],
    targets: Mapping[str, Sequence[Target]],
) -> int:
    """Copy one tensor into its leaves and return how many of its values are not finite."""
    tensor = tensors.read(name)
    parts, count = [tensor], 0
    if len(row.leaves) > 1:
        # The leaves' own tensor shapes say how much of the whole is the part of each.
        shapes = [tuple(leaves[path].shape)[row.stacked :] for path in row.leaves]
        outs = [row.move.out(np.broadcast_to(np.int8(0), shape)) for shape in shapes]
        parts = row.move.cut(tensor, [out.shape[row.move.axis] for out in outs])
    for path, part in zip(row.leaves, parts, strict=True):
        moved = row.move.into(part)
        for target in targets[path]:
            counted, rest = target.bounds[: row.stacked], target.bounds[row.stacked :]
            if all(first <= i < stop for i, (first, stop) in zip(index, counted, strict=True)):
                place = tuple(i - first for i, (first, _) in zip(index, counted, strict=True))
                count += _copy(
                    moved[tuple(slice(*part) for part in rest)], target.buffer[(*place, ...)]
                )
    tensors.release(name)
    return count


def _copy(source: np.ndarray, target: np.ndarray) -> int:
    """Copy, widening where the dtypes differ, in pieces that stay in the cache for the check."""
    source = np.asarray(source)
    if not target.ndim:
        target[...] = source
        return not_finite(target)
    turned = _turned(source)
    if turned is not None and target.flags.c_contiguous:
        return _copy_turned(turned, target.reshape(turned.shape))
    step = max(1, CHUNK_BYTES * len(target) // max(1, target.nbytes))
    count = 0
    for begin in range(0, len(target), step):
        piece = target[begin : begin + step]
        _cast(source[begin : begin + step], piece)
        count += not_finite(piece)
    return count


def _turned(view: np.ndarray) -> np.ndarray | None:
    """Return the transposed matrix [I, O] that a view shows in other axes; None where it is none.

    Axes that lie one behind the other in memory count as one.
    """
    axes: list[tuple[int, int]] = []
    for size, stride in zip(view.shape, view.strides, strict=True):
        if axes and axes[-1][1] == size * stride:
            axes[-1] = (axes[-1][0] * size, stride)
        elif size != 1:
            axes.append((size, stride))
    if len(axes) != 2 or axes[0][1] != view.itemsize or axes[1][1] < axes[0][0] * view.itemsize:
        return None
    shape, strides = zip(*axes, strict=True)
    return np.lib.stride_tricks.as_strided(view, shape, strides, writeable=False)


def _copy_turned(source: np.ndarray, target: np.ndarray) -> int:
    """Copy a transposed matrix [I, O] in tiles, each read along its rows before it is turned.

    Its rows often lie a power of two apart, where the processor's cache holds few lines at once;
    those of a tile do not.
    """
    rows, columns = TILE
    held = np.empty((rows, columns + TILE_ROOM), target.dtype)
    count = 0
    for row in range(0, source.shape[1], rows):
        for column in range(0, len(source), columns):
            place = (slice(column, column + columns), slice(row, row + rows))
            given = source[place].T
            tile = held[: len(given), : given.shape[1]]
            _cast(given, tile)
            count += not_finite(tile)
            target[place] = tile.T
    return count


def _cast(source: np.ndarray, target: np.ndarray) -> None:
    if source.dtype == ml_dtypes.bfloat16 and target.dtype == np.float32:
        # Exact, and twice as fast as the cast that ml_dtypes registers with numpy.
        np.left_shift(source.view(np.uint16), 16, out=target.view(np.uint32), dtype=np.uint32)
    else:
        target[...] = source


def _warn_not_finite(counts: Mapping[str, int]) -> None:
    """Warn once, naming the tensors that hold NaN or infinity."""
    if counts:
        found = [f"{shown(name)[1:-1]}: {count}" for name, count in counts.items()]
        warnings.warn(
            listed("values that are NaN or infinite; every output they reach will be too:", found),
            stacklevel=4,
        )
