"""Which documents or rows are held out for validation."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from dew.errors import InputRefused


def held_out(items: Sequence[np.ndarray], *, share: float, seed: int) -> np.ndarray:
    """Choose about `share` of the items, equal ones always on the same side.

    An item's rank comes from its contents and the seed alone, so the choice does not depend on
    the order of the items, and a repeated text is never both trained on and validated on.

    Args:
        items: integer arrays.
        share: above 0 and below 1; at least one kind of item is held out and one is kept.
        seed: another seed, another choice.

    Returns:
        bool [items], true where held out. None at all when all items are equal.

    Raises:
        InputRefused: a share outside its range.
    """
    if not 0 < share < 1:
        raise InputRefused(
            f"split: found {share}, expected the share held out for validation, "
            "above 0 and below 1, such as 0.05."
        )
    start = str(seed).encode() + b"\0"
    ranks = [hashlib.sha256(start + np.ascontiguousarray(item).data).digest() for item in items]
    counts = Counter(ranks)
    wanted, taken = max(1, round(share * len(items))), 0
    chosen = set()
    for rank in sorted(counts)[:-1]:
        if taken >= wanted:
            break
        chosen.add(rank)
        taken += counts[rank]
    return np.array([rank in chosen for rank in ranks], bool)
