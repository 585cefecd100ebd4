"""One file of torch.save: its pickle read without running it, its tensors viewed in place."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bridges.files.mapped_file import MappedFile
from bridges.files.regular_file import LFS_POINTER, open_regular, shown_path
from bridges.files.safetensors_file import TensorInfo
from bridges.files.stored_tensor import StoredTensor
from bridges.files.stored_zip import Member, stored_members
from bridges.files.torch_pickle import read_pickle
from dew.errors import InputRefused, UnknownName, listed, nearest, shown

PICKLE_LIMIT = 16 << 20
REPEATED_BYTES = 16 << 20
"""The most bytes of a tensor that repeats elements of a smaller storage."""
LEGACY_MAGIC, LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
TAR_MARK = 257


@dataclass(frozen=True)
class BinFile:
    """The tensors of one file, mapped into memory once.

    Attributes:
        path: the file.
        entries: name to the view that the pickle describes.
    """

    path: Path
    entries: dict[str, StoredTensor]
    _mapped: MappedFile = field(repr=False)
    _places: Mapping[str, Member] = field(repr=False)

    def names(self) -> list[str]:
        """Return the names of the tensors, in the order of the state dict."""
        return list(self.entries)

    def info(self, name: str) -> TensorInfo:
        """Return shape and dtype of a tensor; see `TensorInfo`."""
        entry = self._entry(name)
        return TensorInfo(entry.shape, entry.dtype, self.path)

    def read(self, name: str) -> np.ndarray:
        """Return a tensor, read-only and C-contiguous.

        Args:
            name: one of `names()`.

        Returns:
            The array in its stored dtype: a view of the file where its elements lie in order, a
            copy where strides scatter or repeat them.

        Raises:
            UnknownName: the file has no such tensor.
            InputRefused: a bool tensor that holds a byte other than 0 and 1.
        """
        entry = self._entry(name)
        if not entry.reach:
            return np.frombuffer(b"", entry.dtype).reshape(entry.shape)
        raw = self._mapped.view(*self._range(entry))
        if entry.dtype == np.bool_ and raw.max() > 1:
            raise InputRefused(
                f"{shown_path(self.path)}: tensor {shown(name)} is bool but holds the byte "
                f"{raw.max()}. Expected only 0 and 1; save it again."
            )
        flat = raw.view(entry.dtype)
        if entry.is_contiguous:
            return flat.reshape(entry.shape)
        size = entry.dtype.itemsize
        # An axis of one element may bear any stride, even one that no array could have.
        axes = zip(entry.shape, entry.strides, strict=True)
        steps = [stride * size if length > 1 else 0 for length, stride in axes]
        array = np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, entry.shape, steps))
        array.flags.writeable = False
        return array

    def release(self, name: str) -> None:
        """Let the system take back the memory pages of a tensor that has been copied.

        Views stay valid: what is touched again is read again.
        """
        start, count = self._range(self._entry(name))
        self._mapped.release(start, count)

    def _range(self, entry: StoredTensor) -> tuple[int, int]:
        """Return the first byte of a tensor in the file, and how many its view spans."""
        size, start = entry.dtype.itemsize, self._places[entry.storage.key].start
        if not entry.reach:
            return start, 0
        return start + entry.offset * size, (entry.reach - entry.offset) * size

    def _entry(self, name: str) -> StoredTensor:
        """Return the entry of `name`, or refuse an unknown one."""
        if name not in self.entries:
            raise UnknownName(
                f"{shown_path(self.path)}: no tensor {shown(name)} among its "
                f"{len(self.entries)}{nearest(name, self.entries)}"
            )
        return self.entries[name]


def open_bin(path: str | os.PathLike[str]) -> BinFile:
    """Open a file that torch.save wrote, without torch; nothing in it is run.

    Args:
        path: a regular file with a state dict, or with one state dict beside plain values
            (`{"state_dict": ..., "epoch": 3}`); the zip layout of torch 1.6 and later, or the
            one before it.

    Returns:
        The file, whose tensors are known to lie within their storages and those in the file.

    Raises:
        InputRefused: not such a file, a pickle that asks for anything but tensors, more than one
            state dict or none, compressed or overlapping members, tensors that reach outside
            their storage, storages of another size than the file has.

    Source: torch 2.14's `serialization._save` and `_legacy_save`.
    """
    where = shown_path(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(TAR_MARK + 5)
        _refuse_beginning(start, where)
        mapped = MappedFile(file, size)
    read = _read_zip if start.startswith(b"PK\x03\x04") else _read_legacy
    value, places = read(mapped, where)
    entries = _state_dict(value, where)
    problems = [
        f"tensor {shown(name)}: {problem}"
        for name, entry in entries.items()
        if (problem := _entry_problem(entry, places))
    ]
    if problems:
        heading = f"{where}: tensors that do not fit their storages. Download or save it again:"
        raise InputRefused(listed(heading, problems))
    return BinFile(Path(path), entries, mapped, places)


def _refuse_beginning(start: bytes, where: str) -> None:
    """Refuse what is no file of torch.save by its first bytes."""
    if not start:
        raise InputRefused(f"{where}: an empty file (0 bytes). Download it again.")
    if start.startswith(LFS_POINTER):
        raise InputRefused(
            f"{where}: found a Git LFS pointer, not the file itself. Run `git lfs pull` in its "
            "folder."
        )
    if start[TAR_MARK:] == b"ustar":
        raise InputRefused(
            f"{where}: a tar archive, as torch before 0.1.10 wrote it. Expected a file of a later "
            "torch; load and save it once with torch, best as safetensors."
        )
    if not start.startswith((b"PK\x03\x04", b"\x80")):
        raise InputRefused(
            f"{where}: begins with {shown(start[:8])}. Expected the zip archive or the pickle that "
            "torch.save writes; check what was downloaded."
        )


def _read_zip(mapped: MappedFile, where: str) -> tuple[Any, dict[str, Member]]:
    """Return what the pickle of a zip archive holds, and where its storages lie."""
    members = stored_members(mapped.buffer(), where)
    pickles = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise InputRefused(
            f"{where}: a zip archive with {len(pickles)} members called data.pkl in its top "
            "folder. Expected the one that torch.save writes; save the state dict again."
        )
    folder = pickles[0].removesuffix("data.pkl")
    inside = {name.removeprefix(folder): member for name, member in members.items()}
    if "constants.pkl" in inside or any(name.startswith("code/") for name in inside):
        raise InputRefused(
            f"{where}: a TorchScript program, which holds code. Expected a state dict; save one "
            "where you trust it: torch.save(torch.jit.load(path).state_dict(), other)."
        )
    order = inside.get("byteorder")
    if order is not None and bytes(mapped.view(order.start, min(order.size, 16))) != b"little":
        raise InputRefused(
            f"{where}: written on a machine of another byte order. Expected little endian; load "
            "and save it once with torch, best as safetensors."
        )
    start, size = inside["data.pkl"]
    if size > PICKLE_LIMIT:
        raise InputRefused(
            f"{where}: data.pkl has {size} bytes. Expected at most {PICKLE_LIMIT}: a pickle that "
            "only names tensors is small; save the weights alone."
        )
    value, _ = read_pickle(bytes(mapped.view(start, size)), where)
    places = {
        name.removeprefix("data/"): member
        for name, member in inside.items()
        if name.startswith("data/")
    }
    return value, places


def _read_legacy(mapped: MappedFile, where: str) -> tuple[Any, dict[str, Member]]:
    """Return the same of the older layout: five pickles, then size and bytes of each storage."""
    place, values = 0, []
    data = bytes(mapped.view(0, min(mapped.size, PICKLE_LIMIT)))
    for expected in (LEGACY_MAGIC, LEGACY_PROTOCOL, None, None, None):
        value, length = read_pickle(data[place:], where)
        if expected is not None and (type(value) is not int or value != expected):
            raise InputRefused(
                f"{where}: a pickle, but not one of torch.save. Expected a state dict in torch's "
                "own format; save the weights as safetensors."
            )
        values.append(value)
        place += length
    _, _, system, found, keys = values
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise InputRefused(
            f"{where}: written on a machine of another byte order. Expected little endian; load "
            "and save it once with torch, best as safetensors."
        )
    sizes = _item_sizes(found)
    places: dict[str, Member] = {}
    for key in keys if isinstance(keys, list) else ():
        if not isinstance(key, str) or key in places or place + 8 > mapped.size:
            break
        count = int.from_bytes(bytes(mapped.view(place, 8)), "little")
        place += 8
        size = count * sizes.get(key, 1)
        if size > mapped.size - place:
            break
        places[key] = Member(place, size)
        place += size
    if not isinstance(keys, list) or len(places) != len(keys) or place != mapped.size:
        raise InputRefused(
            f"{where}: the storages behind the pickle do not fill the file of {mapped.size} bytes "
            "(cut off?). Download it again."
        )
    return found, places


def _item_sizes(value: Any) -> dict[str, int]:
    """Return the bytes of an element of each storage that tensors of a checkpoint name."""
    sizes: dict[str, int] = {}
    waiting, seen = [value], set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, StoredTensor):
            sizes[item.storage.key] = item.storage.dtype.itemsize
        elif isinstance(item, dict | list | tuple) and id(item) not in seen:
            seen.add(id(item))
            waiting.extend(item.values() if isinstance(item, dict) else item)
    return sizes


def _state_dict(value: Any, where: str) -> dict[str, StoredTensor]:
    """Return the tensors by name, from the one place where a file keeps them."""
    if not isinstance(value, dict):
        raise InputRefused(
            f"{where}: the pickle holds one {type(value).__name__}. Expected a dict of tensors by "
            "name; save model.state_dict()."
        )
    if _is_state_dict(value):
        return value
    tensors = [key for key, item in value.items() if isinstance(item, StoredTensor)]
    inner = [key for key, item in value.items() if _is_state_dict(item)]
    if not tensors and len(inner) == 1:
        return value[inner[0]]
    kinds = [
        f"{shown(key)}: {'tensors by name' if key in inner else _kind(item)}"
        for key, item in value.items()
    ]
    several = "several dicts of tensors" if len(inner) > 1 else "tensors beside other values"
    raise InputRefused(
        listed(
            f"{where}: found {several if tensors or inner else 'no tensors'}. Expected tensors by "
            "name, or one dict of them beside plain values; save the one to load by itself. The "
            "file holds:",
            kinds or ["an empty dict"],
        )
    )


def _is_state_dict(value: Any) -> bool:
    """Say whether a value is a dict of tensors by name, and not empty."""
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(k, str) and isinstance(v, StoredTensor) for k, v in value.items())


def _kind(value: Any) -> str:
    """Return what a value is, for a message; what it holds may be endless."""
    return "a tensor" if isinstance(value, StoredTensor) else type(value).__name__


def _entry_problem(entry: StoredTensor, places: Mapping[str, Member]) -> str | None:
    """Return what is wrong with one tensor, in exact integer arithmetic, or None."""
    storage, size = entry.storage, entry.dtype.itemsize
    place = places.get(storage.key)
    if place is None:
        return f"its storage {shown(storage.key)} is not in the file"
    if place.size != storage.size:
        return (
            f"its storage of {storage.count} {storage.dtype} takes {storage.size} bytes, the file "
            f"has {place.size} for it"
        )
    if entry.reach * size > storage.size:
        return (
            f"{shown(list(entry.shape))} {entry.dtype} at {entry.offset} needs "
            f"{entry.reach * size} bytes, its storage has {storage.size}"
        )
    wanted = math.prod(filter(None, entry.shape)) * size
    if wanted > max(storage.size, REPEATED_BYTES):
        return (
            f"{shown(list(entry.shape))} repeats the {storage.size} bytes of its storage to "
            f"{wanted}, more than {REPEATED_BYTES}; save it with .contiguous()"
        )
    return None
