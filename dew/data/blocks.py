"""Batches from rows that are read in order, block by block: shuffled within reach, resumed exactly.

A source too large to look rows up in is read from its start. A block of it is laid out as rows
and shuffled, and gives its rows before the next block is read. Where a run stands is a block and
a row in it, so that a resumed run reads one block again and none of the epoch before it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from dew.data.dataset import DataPartition
from dew.data.rows import Rows
from dew.data.stream import epoch_order
from dew.errors import InputRefused, listed, shown

Batch = dict[str, np.ndarray]
BLOCKS_AN_EPOCH = 1 << 32


@dataclass(frozen=True)
class Block:
    """Rows that lie beside each other in a source.

    Args:
        start: where in the source they begin, as JSON can hold it: reading again from there gives
            the same block.
        rows: what they are laid out as; there may be none.
        items: how many items of the source that are.
    """

    start: Any
    rows: Rows | None
    items: int = 0


class Blocks(Protocol):
    """A source that is read in order, as often as need be."""

    @property
    def fingerprint(self) -> str:
        """A hash of what the rows depend on; a saved position holds only with the same one."""
        ...

    def read(self, epoch: int, start: Any = None) -> Iterator[Block]:
        """Give the blocks of one epoch from `start` on, as a block names it; None for the first."""
        ...


class BlockStream:
    """An endless iterator over the rows of blocks, whose position is a block and a row in it.

    The rows of an epoch follow each other block by block, each block in an order of its own, and
    are cut into global batches; a batch may hold the end of one block or epoch and the start of
    the next. Every process reads every block, since what a row holds may depend on all documents
    of its block, and share k of n keeps the rows k, k + n, ... of each global batch. So the
    position holds for any number of processes and any batch.

    Args:
        blocks: what to read.
        partition: this process's share.
        batch: rows of a global batch, a multiple of `partition.count`.
        seed: shuffles the rows within each block, anew each epoch.
        shuffle: whether to shuffle them.

    Raises:
        InputRefused: a batch that does not divide.
    """

    def __init__(
        self,
        blocks: Blocks,
        partition: DataPartition = DataPartition(),  # noqa: B008 (frozen)
        *,
        batch: int,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self._blocks = blocks
        self._share = partition.of(batch)
        self._batch = batch
        self._seed = int(seed)
        self._shuffle = shuffle
        self._consumed = 0
        self._epoch = self._number = self._row = 0
        self._start: Any = None
        self._reading: _Ahead | None = None
        self._rows: Rows | None = None
        self._order = np.zeros(0, np.int64)
        self._found = False  # whether this epoch has given a row

    def __iter__(self) -> BlockStream:
        """Return the stream itself."""
        return self

    def __next__(self) -> Batch:
        """Return this share of the next global batch: fields [batch / count, ...]."""
        mine = np.zeros(self._batch, bool)
        mine[self._share] = True
        parts: list[Batch] = []
        filled = 0
        while filled < self._batch:
            self._ready()
            indices = self._order[self._row : self._row + self._batch - filled]
            kept = indices[mine[filled : filled + len(indices)]]
            if len(kept):
                assert self._rows is not None
                parts.append(self._rows.take(kept))
            self._row += len(indices)
            filled += len(indices)
        self._consumed += self._batch
        return _joined(parts)

    @property
    def epoch(self) -> int:
        """Whole epochs consumed so far."""
        return self._epoch

    def get_state(self) -> bytes:
        """Return the position as JSON, the same on every process."""
        state = {
            "consumed": self._consumed,
            "epoch": self._epoch,
            "block": self._number,
            "row": self._row,
            "start": self._start,
            "seed": self._seed,
            "fingerprint": self._blocks.fingerprint,
        }
        return json.dumps(state).encode()

    def set_state(self, state: bytes) -> None:
        """Go on at a position that `get_state` gave, on any number of processes.

        Raises:
            InputRefused: not such a position, or one in another source or of another seed.
        """
        saved = _read_state(state)
        ours = {"seed": self._seed, "fingerprint": self._blocks.fingerprint}
        problems = [
            f"{name}: the position has {shown(saved[name])}, this data {shown(value)}"
            for name, value in ours.items()
            if saved[name] != value
        ]
        if problems:
            heading = "the saved data position is not one in this data; go on with the same"
            heading += " data, settings and seed, or start a new run:"
            raise InputRefused(listed(heading, problems))
        self._close()
        self._consumed, self._epoch = saved["consumed"], saved["epoch"]
        self._number, self._row, self._start = saved["block"], saved["row"], saved["start"]
        self._found = self._number > 0 or self._row > 0

    def close(self) -> None:
        """Let go of the files being read."""
        self._close()

    def _close(self) -> None:
        if self._reading is not None:
            self._reading.close()
        self._reading, self._rows = None, None
        self._order = np.zeros(0, np.int64)

    def _ready(self) -> None:
        """Have a row that is not consumed, reading blocks and beginning epochs as needed."""
        if self._reading is None:  # at the start, or resumed: the block is read again
            self._reading = _Ahead(self._blocks.read(self._epoch, self._start))
            row = self._row
            self._open()
            self._row = row
        while self._row >= len(self._order):
            self._number += 1
            self._open()

    def _open(self) -> None:
        """Take the next block, or the first of the next epoch."""
        assert self._reading is not None
        block = self._reading.take()
        if block is None:
            if not self._found:
                raise InputRefused(
                    "the training data gives no row in a whole epoch; give it at least one."
                )
            self._epoch, self._number, self._found = self._epoch + 1, 0, False
            self._reading = _Ahead(self._blocks.read(self._epoch))
            block = self._reading.take() or Block(None, None)
        self._rows, self._start, self._row = block.rows, block.start, 0
        count = 0 if block.rows is None else len(block.rows)
        self._found |= count > 0
        self._order = np.arange(count)
        if self._shuffle:
            number = self._epoch * BLOCKS_AN_EPOCH + self._number
            self._order = epoch_order(count, seed=self._seed, epoch=number)


class _Ahead:
    """Reads the next block while this one gives its rows: a step waits for none but the first."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self._found: Block | None = None
        self._error: BaseException | None = None
        self._begin()

    def take(self) -> Block | None:
        """Return the next block, or None at the end; raise what its reading raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        found = self._found
        if found is not None:
            self._begin()
        return found

    def close(self) -> None:
        """Let go of the files being read."""
        self._thread.join()
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._read, name="dew-block", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._found = next(self._blocks, None)
        except BaseException as error:
            self._error = error


def block_batches(
    blocks: Blocks,
    partition: DataPartition = DataPartition(),  # noqa: B008 (frozen)
    *,
    batch: int,
    limit: int | None = None,
) -> Iterator[Batch]:
    """Give every row once, in order, in batches of one shape; the last is filled with zeros.

    Args:
        blocks: what to read, from its start.
        partition: this process's share, the rows k, k + n, k + 2n, ... of each global batch.
        batch: rows of a global batch, a multiple of `partition.count`.
        limit: the most rows that are given; None for all.

    Returns:
        An iterator over fields [batch / count, ...]; rows of zeros have `segments` 0, which no
        sum counts.

    Raises:
        InputRefused: a batch that does not divide, at the call and not at the first batch.
    """
    return _block_batches(blocks, partition.of(batch), batch, limit)


def _block_batches(blocks: Blocks, share: slice, batch: int, limit: int | None) -> Iterator[Batch]:
    rows = islice(_each_row(blocks), limit)
    while group := list(islice(rows, batch)):
        whole = _joined(group)
        filler = batch - len(group)
        if filler and "segments" not in whole:
            raise InputRefused(
                f"{len(group)} rows are left for a batch of {batch}, and rows without segments "
                "cannot be filled up. Choose a batch that divides the rows."
            )
        padded = {
            key: np.pad(field, [(0, filler)] + [(0, 0)] * (field.ndim - 1))
            for key, field in whole.items()
        }
        yield {key: field[share] for key, field in padded.items()}


def _each_row(blocks: Blocks) -> Iterator[Batch]:
    for block in blocks.read(0):
        for row in range(0 if block.rows is None else len(block.rows)):
            assert block.rows is not None
            yield block.rows.take(np.array([row]))


def _joined(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _read_state(state: bytes) -> dict[str, Any]:
    expected = "expected what get_state() of the same kind of stream gave."
    try:
        saved = json.loads(bytes(state).decode())
    except (ValueError, RecursionError) as error:
        raise InputRefused(
            f"data position: {shown(bytes(state))} is no JSON; {expected}"
        ) from error
    numbers = ("consumed", "epoch", "block", "row")
    kinds = {**dict.fromkeys(numbers, int), "seed": int, "fingerprint": str}
    if (
        not isinstance(saved, dict)
        or "start" not in saved
        or any(type(saved.get(name)) is not kind for name, kind in kinds.items())
        or min(saved[name] for name in numbers) < 0
    ):
        raise InputRefused(f"data position: found {shown(saved)}; {expected}")
    return saved
