"""The cache of the prompt before, for prompts that begin as it did."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from dew.inference.bundle import Bundle

_KEPT: weakref.WeakKeyDictionary[Bundle, tuple[Any, np.ndarray, Any]] = weakref.WeakKeyDictionary()


def kept_prefix(bundle: Bundle, way: Any, row: np.ndarray, piece: int) -> tuple[Any, int]:
    """Take the kept cache where it serves a prompt: the cache, and how many ids it holds of it.

    They are whole pieces, as reading the prompt would make them, so that what came before changes
    no bit of the result. At least the prompt's last id is left to be read.

    Args:
        bundle: whose cache.
        way: what must be equal for a cache to fit.
        row: the prompt, int32 [P].
        piece: ids that are read at a time.

    Returns:
        None and 0 where nothing serves.
    """
    theirs, ids, layers = _KEPT.pop(bundle, (None, row[:0], None))
    shorter = min(len(ids), len(row) - 1)
    unlike = np.flatnonzero(ids[:shorter] != row[:shorter])
    shared = int(unlike[0]) if unlike.size else shorter
    whole = shared // piece * piece
    return (layers, whole) if theirs == way and whole else (None, 0)


def keep(bundle: Bundle, way: Any, row: np.ndarray, layers: Any) -> None:
    """Keep a cache for `kept_prefix`, the one before it is dropped.

    Args:
        bundle: whose cache.
        way: see `kept_prefix`.
        row: the prompt, int32 [P], that its first slots hold.
        layers: the cache.
    """
    _KEPT[bundle] = (way, row, layers)
