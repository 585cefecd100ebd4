"""How many tokens a run has been trained on, after any number of microbatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

CHUNK_ROWS = 1024


def counter(targets: np.ndarray, *, seed: int, batch: int) -> Callable[[int], int]:
    """Return the tokens that a run has counted, as a function of the microbatches.

    It follows from the order of the rows alone, so a resumed run counts as one that never
    stopped.

    Args:
        targets: how many each row holds, int64 [rows].
        seed: of their order.
        batch: rows of a microbatch.
    """
    from dew.data.stream import epoch_order

    sums: dict[int, np.ndarray] = {}

    def count(microbatches: int) -> int:
        epoch, rest = divmod(microbatches * batch, len(targets))
        if rest and epoch not in sums:
            sums.clear()
            sums[epoch] = np.cumsum(targets[epoch_order(len(targets), seed=seed, epoch=epoch)])
        return epoch * int(targets.sum()) + (int(sums[epoch][rest - 1]) if rest else 0)

    return count


def row_targets(rows: Any) -> np.ndarray:
    """Return how many targets each row holds, int64 [rows]."""
    from dew.data import TokenRows

    parts = []
    for start in range(0, len(rows), CHUNK_ROWS):
        batch = rows.take(np.arange(start, min(start + CHUNK_ROWS, len(rows))))
        part = TokenRows(batch["text"], batch.get("segments"), batch.get("weights"))
        parts.append(part.targets.sum(axis=1, dtype=np.int64))
    return np.concatenate(parts)
