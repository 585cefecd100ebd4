"""Files of tokens that need no tokenizer: `.npy` and `.bin` of ids, and text as its bytes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dew.errors import InputRefused, UnknownName, nearest, shown

DTYPES = ("uint16", "uint32", "int32")
BYTES = 256
_CHUNK = 1 << 22


def token_stream(path: str, *, dtype: str = "uint16", vocab_size: int | None = None) -> np.ndarray:
    """Return the ids that a file holds, mapped into memory.

    Args:
        path: `.npy` with integers on one axis; `.bin` with nothing but little-endian ids; or
            `.txt`, whose bytes are its ids, 0 to 255.
        dtype: of a `.bin`: uint16, uint32 or int32.
        vocab_size: ids from here on are refused, as are negative ones: an accelerator would clamp
            them in silence. None leaves that to the caller.

    Returns:
        Integers [T], a read-only memory map.

    Raises:
        InputRefused: no such file, another kind of file, a length that is no whole number of
            ids, or an id past the vocabulary.
    """
    readers = {".npy": _npy, ".bin": _bin, ".txt": _text}
    suffix = Path(path).suffix.lower()
    if suffix not in readers:
        raise InputRefused(f"{shown(path)}: expected a file of tokens: {', '.join(readers)}")
    with _opened(path) as file:
        tokens = readers[suffix](file, path, dtype)
    for start in range(0, len(tokens), _CHUNK):
        part = tokens[start : start + _CHUNK]
        wrong = part < 0 if vocab_size is None else (part < 0) | (part >= vocab_size)
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise InputRefused(
                f"{shown(path)}: id {int(part[place])} at position {start + place}, but the "
                f"model's vocab_size is {vocab_size} (read as {tokens.dtype}). Check the "
                "tokenizer that wrote the file, and its dtype."
            )
    return tokens


def _opened(path: str) -> BinaryIO:
    try:
        # A pipe without a writer would block a plain open.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputRefused(f"{shown(path)}: {reason}; expected a file of tokens") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InputRefused(f"{shown(path)}: not a regular file; expected a file of tokens")
    return os.fdopen(handle, "rb")


def _npy(file: BinaryIO, path: str, dtype: str) -> np.ndarray:
    del dtype
    file.close()
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # its header is read as a Python literal: any error may come out
        raise InputRefused(f"{shown(path)}: not readable as .npy: {shown(str(error))}") from None
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        found = f"{getattr(tokens, 'dtype', 'an archive')} {getattr(tokens, 'shape', '')}"
        raise InputRefused(f"{shown(path)}: found {found}, expected whole numbers on one axis")
    return tokens


def _bin(file: BinaryIO, path: str, dtype: str) -> np.ndarray:
    if dtype not in DTYPES:
        raise UnknownName(
            f"dtype is {shown(dtype)}; expected {', '.join(DTYPES)}{nearest(dtype, DTYPES)}"
        )
    return _mapped(file, path, np.dtype(dtype).newbyteorder("<"))


def _text(file: BinaryIO, path: str, dtype: str) -> np.ndarray:
    del dtype
    return _mapped(file, path, np.dtype(np.uint8))


def _mapped(file: BinaryIO, path: str, stored: np.dtype) -> np.ndarray:
    size = os.fstat(file.fileno()).st_size
    if not size or size % stored.itemsize:
        raise InputRefused(
            f"{shown(path)}: {size} bytes; expected a multiple of {stored.itemsize}, above 0. The "
            "file is cut off, or of another dtype."
        )
    return np.memmap(file, stored, mode="r")
