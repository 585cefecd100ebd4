"""Files that hold token ids and nothing else: `.bin` and `.npy`."""

from __future__ import annotations

import os
import tokenize
from pathlib import Path

import numpy as np

from bridges.files.regular_file import open_regular, shown_path
from dew.errors import InputRefused, UnknownName, shown

SUFFIXES = (".bin", ".npy")
DTYPES = ("uint16", "uint32", "int32")
# NumPy reads the header of a .npy as a Python literal, and lets the parser's own errors out.
DAMAGED = (
    ValueError,
    TypeError,
    OSError,
    EOFError,
    SyntaxError,
    OverflowError,
    MemoryError,
    RecursionError,
    tokenize.TokenError,
)
CHUNK = 1 << 22


def read_tokens(path: str | os.PathLike[str], *, vocab_size: int, dtype: str) -> np.ndarray:
    """Map a file of token ids into memory and check every one.

    Args:
        path: `.npy` with integers on one axis, or `.bin` with nothing but little-endian ids.
        vocab_size: ids from here on are refused: an accelerator would clamp them in silence.
        dtype: of a `.bin`: uint16, uint32 or int32. A `.npy` names its own.

    Returns:
        Integers [T], a read-only memory map.

    Raises:
        InputRefused: no such file, a length that is no whole number of ids, an array of objects
            or of more axes, or an id past the vocabulary. UnknownName: another dtype.
    """
    path = Path(path)
    tokens = _npy(path) if path.suffix.lower() == ".npy" else _bin(path, dtype)
    for start in range(0, len(tokens), CHUNK):
        part = tokens[start : start + CHUNK]
        if part.max() >= vocab_size or part.min() < 0:
            place = int(np.flatnonzero((part >= vocab_size) | (part < 0))[0])
            raise InputRefused(
                f"{shown_path(path)}: id {int(part[place])} at position {start + place}, but "
                f"vocab_size is {vocab_size}. Expected ids of this model's tokenizer; check the "
                f"tokenizer that wrote the file and its dtype (read as {tokens.dtype})."
            )
    return tokens


def _bin(path: Path, dtype: str) -> np.ndarray:
    if dtype not in DTYPES:
        raise UnknownName(f"token dtype: found {shown(dtype)}, expected {', '.join(DTYPES)}.")
    stored = np.dtype(dtype).newbyteorder("<")
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size % stored.itemsize:
            raise InputRefused(
                f"{shown_path(path)}: {size} bytes is not a multiple of {stored.itemsize}, the "
                f"bytes of a {dtype}. The file is cut off, or of another dtype."
            )
        if not size:
            raise InputRefused(f"{shown_path(path)}: an empty file. Expected token ids.")
        return np.memmap(file, stored, mode="r")


def _npy(path: Path) -> np.ndarray:
    open_regular(path).close()
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except DAMAGED as error:
        raise InputRefused(
            f"{shown_path(path)}: cannot be read as an array: {shown(str(error))}. Expected a "
            ".npy file of integers."
        ) from None
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        found = f"{getattr(tokens, 'dtype', 'an archive')} {getattr(tokens, 'shape', '')}"
        raise InputRefused(
            f"{shown_path(path)}: found {found}, expected whole numbers on one axis."
        )
    return tokens
