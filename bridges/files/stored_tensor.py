"""A tensor of torch.save before it is read: a view of a storage that lies elsewhere in the file."""

from __future__ import annotations

import math
from typing import NamedTuple

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype] = {
    "bool": np.dtype(np.bool_),
    "uint8": np.dtype(np.uint8),
    "int8": np.dtype(np.int8),
    "uint16": np.dtype(np.uint16),
    "int16": np.dtype(np.int16),
    "uint32": np.dtype(np.uint32),
    "int32": np.dtype(np.int32),
    "uint64": np.dtype(np.uint64),
    "int64": np.dtype(np.int64),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "complex64": np.dtype(np.complex64),
    "complex128": np.dtype(np.complex128),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "float8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
}
"""torch's names of the dtypes that are read."""


class Storage(NamedTuple):
    """A flat run of numbers that lies outside the pickle.

    Attributes:
        key: what the file calls it.
        dtype: of its elements; uint8 where the tensor alone knows.
        count: of its elements.
    """

    key: str
    dtype: np.dtype
    count: int

    @property
    def size(self) -> int:
        """Return how many bytes it takes."""
        return self.count * self.dtype.itemsize


class StoredTensor(NamedTuple):
    """A view of a storage; offset and strides count elements of `dtype`."""

    storage: Storage
    dtype: np.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def reach(self) -> int:
        """Return how many elements, from the first of the storage, must be there."""
        if 0 in self.shape:
            return 0
        steps = zip(self.shape, self.strides, strict=True)
        return self.offset + 1 + sum((size - 1) * stride for size, stride in steps)

    @property
    def is_contiguous(self) -> bool:
        """Say whether the view's elements lie in row-major order without gaps."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return math.prod(self.shape) == 0
            step *= size
        return True
