"""One safetensors file: its header checked whole before any array is handed out."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from bridges.files.json_file import parse_json
from bridges.files.mapped_file import MappedFile
from bridges.files.regular_file import LFS_POINTER, open_regular, shown_path
from dew.errors import InputRefused, UnknownName, listed, nearest, shown

HEADER_LIMIT = 100_000_000
DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "C64": np.dtype(np.complex64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
BEGINNINGS = (
    (LFS_POINTER, "a Git LFS pointer, not the file itself. Run `git lfs pull` in its folder"),
    (b"PK\x03\x04", "a zip archive (perhaps a torch checkpoint). Save it as safetensors"),
    (b"GGUF", "a GGUF file. Name it with the ending .gguf"),
    (b"<!DOCTYPE", "a web page, as a failed download leaves. Download the file again"),
    (b"<html", "a web page, as a failed download leaves. Download the file again"),
)


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a stored tensor without reading it.

    Attributes:
        shape: its axes, outermost first.
        dtype: the numpy dtype that reading it gives.
        file: the file that holds it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    file: Path


class Entry(NamedTuple):
    """One tensor of the header; the byte range counts from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class SafetensorsFile:
    """The tensors of one file, mapped into memory once.

    Attributes:
        path: the file.
        entries: name to entry, in the header's order.
        metadata: the header's own text fields.
    """

    path: Path
    entries: dict[str, Entry]
    metadata: dict[str, str]
    _mapped: MappedFile = field(repr=False)
    _data_offset: int = field(repr=False)

    def names(self) -> list[str]:
        """Return the names of the tensors, in the header's order."""
        return list(self.entries)

    def info(self, name: str) -> TensorInfo:
        """Return shape and dtype of a tensor; see `TensorInfo`."""
        entry = self._entry(name)
        return TensorInfo(entry.shape, DTYPES[entry.dtype], self.path)

    def read(self, name: str) -> np.ndarray:
        """Return a tensor as a read-only, C-contiguous view of the file.

        Args:
            name: one of `names()`.

        Returns:
            The array in its stored dtype; nothing is copied, pages come in when touched.

        Raises:
            UnknownName: the file has no such tensor.
            InputRefused: a BOOL tensor that holds a byte other than 0 and 1.
        """
        entry = self._entry(name)
        raw = self._mapped.view(self._data_offset + entry.start, entry.end - entry.start)
        if entry.dtype == "BOOL" and raw.size and raw.max() > 1:
            raise InputRefused(
                f"{shown_path(self.path)}: tensor {shown(name)} is BOOL but holds the byte "
                f"{raw.max()}. Expected only 0 and 1; write the file again."
            )
        return raw.view(DTYPES[entry.dtype]).reshape(entry.shape)

    def release(self, name: str) -> None:
        """Let the system take back the memory pages of a tensor that has been copied.

        Views stay valid: what is touched again is read again.
        """
        entry = self._entry(name)
        self._mapped.release(self._data_offset + entry.start, entry.end - entry.start)

    def _entry(self, name: str) -> Entry:
        """Return the entry of `name`, or refuse an unknown one."""
        if name not in self.entries:
            raise UnknownName(
                f"{shown_path(self.path)}: no tensor {shown(name)} among its "
                f"{len(self.entries)}{nearest(name, self.entries)}"
            )
        return self.entries[name]


def open_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Open a safetensors file and check its whole header; no tensor is read.

    Args:
        path: a regular file.

    Returns:
        The file, whose entries are known to tile its data exactly.

    Raises:
        InputRefused: not a safetensors file, cut off, too long, or a header whose names, dtypes,
            shapes and byte ranges do not fit each other and the file. All tensors at fault are
            listed.

    Source: the format notes of safetensors 0.8 (names unique, ranges without holes or overlaps).
    """
    where = shown_path(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        header = _header(file, size, where)
        offset = file.tell()
        metadata = _metadata(header.pop("__metadata__", {}), where)
        entries, problems = _entries(header)
        problems = problems or _tiling(entries, size - offset)
        if problems:
            raise InputRefused(
                listed(
                    f"{where}: the header does not fit the file ({size - offset} bytes of data). "
                    "Expected every byte to belong to one tensor; download or write it again:",
                    problems,
                )
            )
        mapped = MappedFile(file, size)
    return SafetensorsFile(Path(path), entries, metadata, mapped, offset)


def _header(file: BinaryIO, size: int, where: str) -> dict[str, Any]:
    """Read the header's JSON object, leaving `file` at the first byte of data."""
    if size == 0:
        raise InputRefused(
            f"{where}: an empty file (0 bytes). Expected safetensors; download it again."
        )
    start = file.read(64)
    for beginning, found in BEGINNINGS:
        if start.lstrip().startswith(beginning):
            raise InputRefused(f"{where}: expected a safetensors file, found {found}.")
    length = int.from_bytes(start[:8], "little")
    if size < 8 or length > size - 8 or length > HEADER_LIMIT or length < 2:
        raise InputRefused(
            f"{where}: the header claims {length} bytes; the file has {size} bytes in all, and "
            f"the limit for a header is {HEADER_LIMIT}. Expected a whole safetensors file; "
            "download it again."
        )
    file.seek(8)
    text = file.read(length)
    if not text.startswith(b"{"):
        raise InputRefused(
            f"{where}: the header begins with {shown(text[:8])}. Expected '{{'; this is not a "
            "safetensors file. Download it again."
        )
    return parse_json(text, f"{where} (header)")


def _metadata(metadata: Any, where: str) -> dict[str, str]:
    """Return the header's text fields, or refuse what is no text."""
    if isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values()):
        return metadata
    raise InputRefused(
        f"{where}: the header's __metadata__ is {shown(metadata)}. Expected an object of texts; "
        "write the file again."
    )


def _entries(header: dict[str, Any]) -> tuple[dict[str, Entry], list[str]]:
    """Return the entries of a header and what is wrong with each of them alone."""
    entries, problems = {}, []
    for name, fields in header.items():
        problem = _entry_problem(fields)
        if problem:
            problems.append(f"tensor {shown(name)}: {problem}")
            continue
        start, end = fields["data_offsets"]
        entries[name] = Entry(fields["dtype"], tuple(fields["shape"]), start, end)
    return entries, problems


def _entry_problem(fields: Any) -> str | None:
    """Return what is wrong with one tensor's fields, in exact integer arithmetic, or None."""
    if not isinstance(fields, dict) or fields.keys() != {"dtype", "shape", "data_offsets"}:
        return f"found {shown(fields)}, expected the fields dtype, shape and data_offsets"
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        return f"dtype {shown(dtype)}, expected one of {', '.join(DTYPES)}"
    if not _are_counts(shape):
        return f"shape {shown(shape)}, expected a list of integers of at least 0"
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return f"data_offsets {shown(offsets)}, expected [start, end] with start <= end"
    wanted, given = math.prod(shape) * DTYPES[dtype].itemsize, offsets[1] - offsets[0]
    if wanted != given:
        return f"{dtype} {shown(shape)} takes {wanted} bytes, data_offsets give {given}"
    return None


def _are_counts(values: Any) -> bool:
    """Say whether `values` is a list of integers that are at least 0 (true is no integer)."""
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _tiling(entries: dict[str, Entry], size: int) -> list[str]:
    """Return where the byte ranges overlap, leave a hole, or do not end where the data ends."""
    problems, position, previous = [], 0, ""
    ordered = sorted(entries.items(), key=lambda item: item[1][2:])
    for name, entry in ordered:
        if entry.start < position:
            problems.append(
                f"tensors {shown(previous)} and {shown(name)} overlap: the second starts at "
                f"{entry.start}, the first ends at {position}"
            )
        elif entry.start > position:
            problems.append(
                f"a hole: bytes {position}..{entry.start} before {shown(name)} are in no tensor"
            )
        if entry.end >= position:
            position, previous = entry.end, name
    if position > size:
        problems.append(f"cut off: the tensors take {position} bytes, the file holds {size}")
    elif position < size:
        problems.append(
            f"{size - position} bytes after the last tensor (from byte {position} of the data)"
        )
    return problems
