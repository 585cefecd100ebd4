"""A file mapped into memory: views of its bytes, and giving the pages back."""

from __future__ import annotations

import mmap
from typing import BinaryIO

import numpy as np


class MappedFile:
    """The bytes of an open file, readable for as long as this object or a view of it lives."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        """Map the first `size` bytes of `file`, which may be closed afterwards."""
        self.size = size
        self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)

    def view(self, start: int, count: int) -> np.ndarray:
        """Return `count` bytes from `start` on as a read-only uint8 array, without a copy."""
        return np.frombuffer(self._map, np.uint8, count=count, offset=start)

    def release(self, start: int, count: int) -> None:
        """Let the system take back the whole pages within a range.

        Views stay valid: what is touched again is read again.
        """
        page = mmap.ALLOCATIONGRANULARITY
        first = -(-start // page) * page
        length = (start + count) // page * page - first
        if length > 0 and hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED, first, length)

    def buffer(self) -> mmap.mmap:
        """Return the mapping itself, for readers that walk it with `struct`."""
        return self._map
