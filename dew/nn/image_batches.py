"""Batches of images on their way through a network, a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

CHUNK = 32
"""Images an encoder sees at once: what bounds its workspace, whatever the batch."""


def in_chunks(
    encode: Callable[[np.ndarray], jax.Array],
    rows: np.ndarray,
    chunk: int = CHUNK,
    *,
    streams: int = 1,
) -> np.ndarray:
    """Return `encode` of all rows, `chunk` at a time, on the host.

    A last, shorter chunk is filled up to a power of two, so that few shapes are compiled.

    Args:
        encode: [n, ...] to [n, ...], each row by itself; a compiled function of its variables too,
            which the rows then follow to their device.
        rows: [N, ...], at least one.
        chunk: how many at a time, a power of two.
        streams: how many chunks are under way at once, each in a thread of its own.
    """

    def encoded(start: int) -> np.ndarray:
        part = rows[start : start + chunk]
        size = 1 << (len(part) - 1).bit_length()
        filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), 0)])
        return np.asarray(encode(filled))[: len(part)]

    starts = range(0, len(rows), chunk)
    if streams == 1 or len(starts) == 1:
        return np.concatenate([encoded(start) for start in starts])
    with ThreadPoolExecutor(streams) as threads:
        return np.concatenate(list(threads.map(encoded, starts)))
