"""Batches from rows: an endless shuffled stream that resumes exactly, and a finite pass."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from dew.data.dataset import DataPartition
from dew.data.rows import Rows
from dew.errors import InputRefused, listed, shown


def epoch_order(rows: int, *, seed: int, epoch: int) -> np.ndarray:
    """Return the order of one epoch: a permutation of 0 to `rows` - 1, int64 [rows].

    It sorts the raw output of Philox, which NumPy keeps equal from version to version, as it does
    not for `Generator.permutation`: a run resumed after an upgrade sees the same order.
    """
    key = np.array([seed % 2**64, epoch], np.uint64)
    draws = np.random.Philox(key=key).random_raw(rows)
    return np.argsort(draws, kind="stable")


class RowStream:
    """An endless iterator over shuffled rows, whose position is a number.

    The epochs' orders are joined end to end and cut into global batches, so that each row comes
    exactly once an epoch and a batch may hold the end of one epoch and the start of the next.
    Share k of n takes the rows k, k + n, k + 2n, ... of each global batch. The position is the
    number of rows consumed over all shares: it holds for any number of processes and any batch.

    Args:
        rows: what to read, at least one row.
        partition: this process's share.
        batch: rows of a global batch, a multiple of `partition.count`.
        seed: shuffles; each epoch has an order of its own.

    Raises:
        InputRefused: no rows, or a batch that does not divide.
    """

    def __init__(
        self,
        rows: Rows,
        partition: DataPartition = DataPartition(),  # noqa: B008 (frozen)
        *,
        batch: int,
        seed: int = 0,
    ) -> None:
        if not len(rows):
            raise InputRefused("the training data holds no row; give it at least one.")
        self._rows = rows
        self._share = partition.of(batch)
        self._batch = batch
        self._seed = int(seed)
        self._consumed = 0
        self._order: tuple[int, np.ndarray] | None = None

    def __iter__(self) -> RowStream:
        """Return the stream itself."""
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        """Return this share of the next global batch: fields [batch / count, L+1]."""
        indices = self._indices(self._consumed, self._consumed + self._batch)
        batch = self._rows.take(indices[self._share])
        self._consumed += self._batch
        return batch

    @property
    def epoch(self) -> float:
        """Epochs consumed so far."""
        return self._consumed / len(self._rows)

    def get_state(self) -> bytes:
        """Return the position as JSON, the same on every process."""
        state = {
            "consumed": self._consumed,
            "seed": self._seed,
            "fingerprint": self._rows.fingerprint,
        }
        return json.dumps(state).encode()

    def set_state(self, state: bytes) -> None:
        """Go on at a position that `get_state` gave, on any number of processes.

        Raises:
            InputRefused: not such a position, or one in other rows or of another seed.
        """
        saved = _read_state(state)
        ours = {"seed": self._seed, "fingerprint": self._rows.fingerprint}
        problems = [
            f"{name}: the position has {shown(saved[name])}, this data {shown(value)}"
            for name, value in ours.items()
            if saved[name] != value
        ]
        if problems:
            advice = "the saved data position is not one in this data; go on with the same"
            advice += " data and seed, or start a new run:"
            raise InputRefused(listed(advice, problems))
        self._consumed = saved["consumed"]

    def _indices(self, start: int, stop: int) -> np.ndarray:
        """Return the rows at the global positions `start` to `stop`, int64 [stop - start]."""
        parts = []
        while start < stop:
            epoch, offset = divmod(start, len(self._rows))
            end = min(offset + stop - start, len(self._rows))
            parts.append(self._epoch(epoch)[offset:end])
            start += end - offset
        return np.concatenate(parts)

    def _epoch(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, epoch_order(len(self._rows), seed=self._seed, epoch=epoch))
        return self._order[1]


def finite_batches(
    rows: Rows,
    partition: DataPartition = DataPartition(),  # noqa: B008 (frozen)
    *,
    batch: int,
) -> Iterator[dict[str, np.ndarray]]:
    """Give every row once, in order, in batches of one shape.

    The last global batch is filled up with rows that no sum counts: `segments` 0, and `weights` 0
    where there are weights. Fields and shapes are the same in all batches and on all shares.

    Args:
        rows: what to read.
        partition: this process's share, the rows k, k + n, k + 2n, ... of each global batch.
        batch: rows of a global batch, a multiple of `partition.count`.

    Returns:
        An iterator over fields [batch / count, L+1].

    Raises:
        InputRefused: a batch that does not divide, at the call and not at the first batch.
    """
    return _finite_batches(rows, partition.of(batch), batch)


def _finite_batches(rows: Rows, share: slice, batch: int) -> Iterator[dict[str, np.ndarray]]:
    mark = len(rows) % batch != 0
    for start in range(0, len(rows), batch):
        indices = np.arange(start, start + batch)[share]
        fields = rows.take(indices[indices < len(rows)])
        if mark and "segments" not in fields:
            fields["segments"] = np.ones_like(fields["text"])
        filler = int((indices >= len(rows)).sum())
        yield {key: np.pad(field, ((0, filler), (0, 0))) for key, field in fields.items()}


def _read_state(state: bytes) -> dict:
    expected = "expected what get_state() gave: JSON with consumed, seed and fingerprint."
    try:
        saved = json.loads(bytes(state).decode())
    except (ValueError, RecursionError) as error:
        raise InputRefused(
            f"data position: {shown(bytes(state))} is not JSON; {expected}"
        ) from error
    kinds = {"consumed": int, "seed": int, "fingerprint": str}
    if not isinstance(saved, dict) or any(type(saved.get(k)) is not v for k, v in kinds.items()):
        raise InputRefused(f"data position: found {shown(saved)}; {expected}")
    if saved["consumed"] < 0:
        raise InputRefused(f"data position: consumed is {saved['consumed']}, expected at least 0.")
    return saved
