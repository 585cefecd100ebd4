"""Writing a checkpoint folder: safetensors streamed to disk, then the whole swapped in at once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bridges.files.safetensors_file import DTYPES

SHARD_BYTES = 5 * 2**30
INDEX = "model.safetensors.index.json"
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Planned:
    """One tensor that will be written."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_weights(
    folder: Path,
    planned: Sequence[Planned],
    tensors: Iterable[tuple[str, np.ndarray]],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write tensors as one safetensors file, or as shards with an index above `shard_bytes`.

    Args:
        folder: an existing folder.
        planned: every tensor's name, shape and dtype, in the order in which `tensors` yields them.
        tensors: the data; one tensor at a time is in memory.
        shard_bytes: the most bytes of tensors in one file; a larger tensor has its own.

    Raises:
        OSError: the disk is full or fails.
    """
    shards = _shards(planned, shard_bytes)
    data = iter(tensors)
    if len(shards) == 1:
        write_safetensors(folder / "model.safetensors", shards[0], data)
        return
    places = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(folder / name, shard, data)
        places.update((tensor.name, name) for tensor in shard)
    metadata = {
        "total_size": sum(tensor.size for tensor in planned),
        "total_parameters": sum(math.prod(tensor.shape) for tensor in planned),
    }
    write_file(folder / INDEX, json_bytes({"metadata": metadata, "weight_map": places}))


def write_safetensors(
    path: Path, planned: Sequence[Planned], tensors: Iterator[tuple[str, np.ndarray]]
) -> None:
    """Write one safetensors file and sync it.

    Args:
        path: the file.
        planned: its tensors, in the order in which `tensors` yields them.
        tensors: takes as many as are planned and leaves the rest.

    Raises:
        ValueError: a tensor other than planned.
        OSError: the disk is full or fails.

    Source: the format notes of safetensors 0.8; the header says that the tensors are torch's,
    which transformers 4 wants to read.
    """
    starts = _starts(planned)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for tensor in sorted(planned, key=lambda tensor: starts[tensor.name]):
        begin = starts[tensor.name]
        header[tensor.name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, begin + tensor.size],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in planned:
            name, array = next(tensors)
            if (name, array.shape, array.dtype) != (tensor.name, tensor.shape, tensor.dtype):
                raise ValueError(f"planned {tensor}, got {name} {array.shape} {array.dtype}")
            file.seek(8 + len(text) + starts[name])
            # Bytes in row-major order, whatever the strides were: the format knows no other.
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        synced(file)


def write_file(path: Path, data: bytes) -> None:
    """Write one small file and sync it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
        synced(file)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return JSON as Hugging Face lays it out: two spaces, a newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def synced(file: BinaryIO) -> None:
    """Wait until what was written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def _shards(planned: Sequence[Planned], limit: int) -> list[list[Planned]]:
    """Return the tensors in files of at most `limit` bytes, in order."""
    shards: list[list[Planned]] = [[]]
    size = 0
    for tensor in planned:
        if shards[-1] and size + tensor.size > limit:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size
    return shards


def _starts(planned: Sequence[Planned]) -> dict[str, int]:
    """Return each tensor's first byte: the widest dtypes come first, so that all are aligned."""
    starts, position = {}, 0
    for tensor in sorted(planned, key=lambda tensor: -tensor.dtype.itemsize):
        starts[tensor.name] = position
        position += tensor.size
    return starts
