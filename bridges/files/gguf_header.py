"""The header of a GGUF file: its fields and tensor list, every count checked before it is used."""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from dew.errors import InputRefused, listed, shown

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
MAX_ELEMENTS = 1 << 22
MAX_NAME = 1 << 16
DEFAULT_ALIGNMENT = 32
STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
# What gguf 0.19 turns into float32; its enumeration also has integers and types without code.
DEQUANTISED = frozenset(
    [
        "F32",
        "F16",
        "BF16",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "TQ1_0",
        "TQ2_0",
        "MXFP4",
        "NVFP4",
        "IQ1_S",
        "IQ1_M",
        "IQ2_XXS",
        "IQ2_XS",
        "IQ2_S",
        "IQ3_XXS",
        "IQ3_S",
        "IQ4_NL",
        "IQ4_XS",
    ]
)
SMALLEST_FIELD = 8 + 4 + 1
SMALLEST_TENSOR = 8 + 4 + 4 + 8


class GGUFTensor(NamedTuple):
    """One tensor of the list.

    Attributes:
        dimensions: as the file gives them, innermost first.
        kind: the number of its ggml type.
        offset: of its first byte, from the start of the data.
        size: in bytes.
    """

    dimensions: tuple[int, ...]
    kind: int
    offset: int
    size: int


@dataclass(frozen=True)
class GGUFHeader:
    """What stands before the data.

    Attributes:
        metadata: the fields, as Python numbers, texts and lists of them.
        tensors: name to entry, in the file's order.
        data_offset: where the data starts in the file.
    """

    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    data_offset: int


def read_header(data: mmap.mmap | bytes, where: str) -> GGUFHeader:
    """Read and check the header of a GGUF file.

    Args:
        data: the whole file.
        where: what messages call it.

    Returns:
        The header; every tensor is known to lie inside the file and to overlap no other.

    Raises:
        InputRefused: wrong magic or version, a count or length that the file is too short for,
            a name twice, a tensor of an unknown type, of more than four dimensions or with bytes
            outside the file.

    Source: the GGUF description of ggml, versions 2 and 3 (which differ only in byte order).
    """
    walk = _Walk(data, where)
    magic, version = bytes(data[:4]), walk.at("<I", 4, "the version")
    if magic != MAGIC:
        walk.refuse(f"the magic is {shown(magic)}, expected {MAGIC!r}: not a GGUF file")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        note = " (big-endian)" if swapped else ""
        walk.refuse(f"version {version}{note}, expected one of {VERSIONS}, little-endian")
    walk.position = 8
    tensor_count = walk.number("<Q", "the tensor count")
    field_count = walk.number("<Q", "the field count")
    walk.expect(field_count, SMALLEST_FIELD, "metadata fields")
    metadata = _metadata(walk, field_count)
    walk.expect(tensor_count, SMALLEST_TENSOR, "tensors")
    listing = [_listed_tensor(walk) for _ in range(tensor_count)]
    alignment = _alignment(walk, metadata)
    offset = -(-walk.position // alignment) * alignment
    return GGUFHeader(metadata, _placed(listing, len(data) - offset, alignment, where), offset)


class _Walk:
    """A position in the file's bytes; every step asks first whether the bytes are there."""

    def __init__(self, data: mmap.mmap | bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.position = 0

    def refuse(self, what: str) -> NoReturn:
        """Raise the refusal."""
        raise InputRefused(
            f"{self.where}: {what}. Expected a whole GGUF file; download or convert it again."
        )

    def expect(self, count: int, smallest: int, what: str) -> None:
        """Refuse a count of things that together need more bytes than are left."""
        left = len(self.data) - self.position
        if count * smallest > left:
            self.refuse(
                f"{what}: the header claims {count}, at least {count * smallest} bytes from byte "
                f"{self.position} on, and the file has {left} left"
            )

    def at(self, form: str, position: int, what: str) -> int:
        """Return the number at a position."""
        size = struct.calcsize(form)
        if position + size > len(self.data):
            self.refuse(f"cut off before {what} (file of {len(self.data)} bytes)")
        return struct.unpack_from(form, self.data, position)[0]

    def number(self, form: str, what: str) -> int:
        """Return the next number."""
        value = self.at(form, self.position, what)
        self.position += struct.calcsize(form)
        return value

    def text(self, what: str, limit: int | None = None) -> str:
        """Return the next string."""
        length = self.number("<Q", f"the length of {what}")
        if limit is not None and length > limit:
            self.refuse(f"{what} is {length} bytes long, at most {limit} are read")
        self.expect(length, 1, f"bytes of {what}")
        raw = self.data[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.refuse(f"{what} is not UTF-8: {shown(raw[:60])} ({error.reason})")

    def values(self, kind: int, count: int, what: str) -> list[Any]:
        """Return the next `count` values of a scalar or string type."""
        if count > MAX_ELEMENTS:
            self.refuse(f"{what} has {count} elements, at most {MAX_ELEMENTS} are read")
        if kind == STRING:
            self.expect(count, 8, f"strings of {what}")
            return [self.text(what) for _ in range(count)]
        dtype = np.dtype(SCALARS[kind])
        self.expect(count, dtype.itemsize, f"elements of {what}")
        array = np.frombuffer(self.data, dtype, count=count, offset=self.position)
        self.position += array.nbytes
        return array.astype(np.bool_).tolist() if kind == BOOL else array.tolist()


def _metadata(walk: _Walk, count: int) -> dict[str, Any]:
    """Read the fields."""
    metadata: dict[str, Any] = {}
    for number in range(count):
        key = walk.text(f"the name of field {number}", MAX_NAME)
        if key in metadata:
            walk.refuse(f"the field {shown(key)} stands twice")
        metadata[key] = _field(walk, shown(key))
    return metadata


def _field(walk: _Walk, what: str) -> Any:
    """Read the value of one field: a scalar, a string, or a flat array of them."""
    kind = walk.number("<I", f"the type of {what}")
    if kind in SCALARS or kind == STRING:
        return walk.values(kind, 1, what)[0]
    if kind != ARRAY:
        walk.refuse(f"{what} has the field type {kind}, expected 0 to 12")
    inner = walk.number("<I", f"the element type of {what}")
    count = walk.number("<Q", f"the length of {what}")
    if inner not in SCALARS and inner != STRING:
        walk.refuse(f"{what} is an array of type {inner}, expected numbers or strings")
    walk.expect(count, 8 if inner == STRING else np.dtype(SCALARS[inner]).itemsize, what)
    return walk.values(inner, count, what)


def _listed_tensor(walk: _Walk) -> tuple[str, tuple[int, ...], int, int]:
    """Read one line of the tensor list: name, dimensions, type, offset."""
    name = walk.text("a tensor's name", MAX_NAME)
    what = f"tensor {shown(name)}"
    rank = walk.number("<I", f"the rank of {what}")
    if rank > MAX_DIMENSIONS:
        walk.refuse(f"{what} has {rank} dimensions, at most {MAX_DIMENSIONS} are allowed")
    dimensions = tuple(walk.number("<Q", f"the dimensions of {what}") for _ in range(rank))
    kind = walk.number("<I", f"the type of {what}")
    return name, dimensions, kind, walk.number("<Q", f"the offset of {what}")


def _alignment(walk: _Walk, metadata: dict[str, Any]) -> int:
    """Return the alignment of the data, a power of two."""
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(value) is not int or value < 1 or value & (value - 1):
        walk.refuse(f"general.alignment is {shown(value)}, not a power of two")
    return value


def _placed(
    listing: list[tuple[str, tuple[int, ...], int, int]], room: int, alignment: int, where: str
) -> dict[str, GGUFTensor]:
    """Return the tensors, once each is known to lie in the `room` bytes of data, alone."""
    tensors: dict[str, GGUFTensor] = {}
    problems = []
    for name, dimensions, kind, offset in listing:
        what = f"tensor {shown(name)}"
        size, problem = _stored_bytes(dimensions, kind)
        if name in tensors:
            problem = "stands twice"
        elif problem is None and offset % alignment:
            problem = f"starts at byte {offset}, no multiple of the alignment {alignment}"
        elif problem is None and offset + size > room:
            problem = (
                f"takes bytes {offset}..{offset + size} of the data, and the file holds "
                f"{max(room, 0)} (cut off?)"
            )
        if problem is not None:
            problems.append(f"{what} {problem}")
        tensors[name] = GGUFTensor(dimensions, kind, offset, size)
    problems = problems or _overlaps(tensors)
    if problems:
        raise InputRefused(
            listed(f"{where}: tensors do not fit the file. Download or convert it again:", problems)
        )
    return tensors


def _stored_bytes(dimensions: tuple[int, ...], kind: int) -> tuple[int, str | None]:
    """Return how many bytes a tensor takes, in exact integers, and what is wrong with it."""
    known = block_sizes()
    if kind not in known:
        names = ", ".join(f"{name} ({number})" for number, (name, _, _) in known.items())
        return 0, f"has the ggml type {kind}, expected one of {names}"
    name, block, block_bytes = known[kind]
    row = dimensions[0] if dimensions else 1
    if 0 in dimensions:
        return 0, f"has the dimensions {list(dimensions)}, expected numbers of at least 1"
    if row % block:
        return 0, f"has rows of {row} elements, no multiple of the block of {block} of {name}"
    return math.prod(dimensions) // block * block_bytes, None


def block_sizes() -> dict[int, tuple[str, int, int]]:
    """Return ggml type number to (name, elements of a block, bytes of a block).

    Only the types that become weights; numbers and sizes come from the gguf package.
    """
    import gguf

    return {
        int(kind): (kind.name, block, size)
        for kind, (block, size) in gguf.GGML_QUANT_SIZES.items()
        if kind.name in DEQUANTISED
    }


def _overlaps(tensors: dict[str, GGUFTensor]) -> list[str]:
    """Return which tensors share bytes."""
    problems, end, previous = [], 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
        if tensor.size and tensor.offset < end:
            problems.append(f"tensors {shown(previous)} and {shown(name)} share bytes")
        if tensor.offset + tensor.size >= end:
            end, previous = tensor.offset + tensor.size, name
    return problems
