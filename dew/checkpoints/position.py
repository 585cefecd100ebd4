"""The data position inside a checkpoint: one row of bytes for each process, with its share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dew.data import DataPartition
from dew.errors import InputRefused


def position_rows(saved: bytes | None, share: DataPartition | None) -> dict[str, np.ndarray]:
    """Return a position as arrays; without one, a row of length -1.

    Args:
        saved: the iterator's state.
        share: who read it.
    """
    index, count = (share.index, share.count) if share is not None else (0, 1)
    length = -1 if saved is None else len(saved)
    return {
        "index": np.array([index], np.int32),
        "count": np.array([count], np.int32),
        "length": np.array([length], np.int64),
        # A row may not be empty on disk, so one byte of padding is always there.
        "position": np.frombuffer((saved or b"") + b"\0", np.uint8)[None].copy(),
    }


def position_of(rows: Mapping[str, np.ndarray], share: DataPartition) -> bytes | None:
    """Return the bytes that the reader of `share` goes on from, or None where none was saved.

    Raises:
        InputRefused: the data was shared out between another number of readers.
    """
    shares = list(zip(rows["index"].tolist(), rows["count"].tolist(), strict=True))
    if (share.index, share.count) not in shares:
        raise InputRefused(
            f"the checkpoint holds the data positions of shares {shares}, not of share "
            f"{share.index} of {share.count}. Go on with as many readers as wrote it."
        )
    row = shares.index((share.index, share.count))
    length = int(rows["length"][row])
    return None if length < 0 else rows["position"][row, :length].tobytes()
