"""The data positions inside a checkpoint: one row of bytes for each process, with its share."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dew.data import DataPartition
from dew.errors import InputRefused


def position_row(saved: bytes | None, share: DataPartition | None) -> dict[str, Any]:
    """Return one process's position as JSON carries it.

    Args:
        saved: the iterator's state, or None.
        share: who read it.
    """
    index, count = (share.index, share.count) if share is not None else (0, 1)
    text = None if saved is None else base64.b64encode(saved).decode()
    return {"index": index, "count": count, "position": text}


def position_arrays(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return the rows of all processes as arrays; one without a position has length -1."""
    texts = [row["position"] for row in rows]
    saved = [None if text is None else base64.b64decode(text) for text in texts]
    # A row may not be empty on disk, so one byte of padding is always there.
    longest = 1 + max(len(position or b"") for position in saved)
    padded = [(position or b"").ljust(longest, b"\0") for position in saved]
    return {
        "index": np.array([row["index"] for row in rows], np.int32),
        "count": np.array([row["count"] for row in rows], np.int32),
        "length": np.array([-1 if p is None else len(p) for p in saved], np.int64),
        "position": np.stack([np.frombuffer(position, np.uint8) for position in padded]),
    }


def position_of(arrays: Mapping[str, np.ndarray], share: DataPartition) -> bytes | None:
    """Return the bytes that the reader of `share` goes on from, or None where none was saved.

    That is what the reader of the same share saved. Where the shares are others now, it is the
    position that all of the readers saved, provided that they were all there and agree: then it
    counts over all shares, and says nothing of any one of them.

    Raises:
        InputRefused: other shares, and each has a position of its own.
    """
    pairs = zip(arrays["index"].tolist(), arrays["count"].tolist(), strict=True)
    rows = zip(arrays["length"].tolist(), arrays["position"], strict=True)
    saved = {
        pair: None if length < 0 else row[:length].tobytes()
        for pair, (length, row) in zip(pairs, rows, strict=True)
    }
    if (share.index, share.count) in saved:
        return saved[share.index, share.count]
    counts = {count for _, count in saved}
    whole = len(counts) == 1 and len(saved) == counts.pop()
    if whole and len(set(saved.values())) == 1:
        return next(iter(saved.values()))
    raise InputRefused(
        f"the checkpoint holds the data positions of shares {list(saved)}, not of share "
        f"{share.index} of {share.count}, and no one position over all of them. Go on with as "
        "many readers as wrote it."
    )
