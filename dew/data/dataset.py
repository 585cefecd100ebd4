"""What a run trains on: `Dataset`, and the share of it that one process reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from dew.errors import InputRefused
from dew.typing import Batch


@dataclass(frozen=True)
class DataPartition:
    """The share of every global batch that one process reads.

    Args:
        index: which share, 0 to `count` - 1.
        count: how many disjoint shares a global batch is cut into.
        readers: how many processes read this same share, because their devices hold copies of it.
        reader: which of those this process is, 0 to `readers` - 1. It does not change the rows.

    Raises:
        InputRefused: an index outside its count, or a count below 1.
    """

    index: int = 0
    count: int = 1
    readers: int = 1
    reader: int = 0

    def __post_init__(self) -> None:
        for part, whole in (("index", "count"), ("reader", "readers")):
            number, total = getattr(self, part), getattr(self, whole)
            if not 0 <= number < total:
                raise InputRefused(
                    f"DataPartition: {part} {number} of {whole} {total}; "
                    f"{part} runs from 0 to {whole} - 1, and {whole} is at least 1."
                )

    def of(self, batch: int) -> slice:
        """Return the rows of a global batch of `batch` rows that are in this share.

        Raises:
            InputRefused: the batch does not divide into equal shares.
        """
        if batch < 1 or batch % self.count:
            raise InputRefused(
                f"batch: {batch} rows do not divide into {self.count} equal shares of at least "
                f"one row; choose a multiple of {self.count}."
            )
        return slice(self.index, batch, self.count)


@dataclass(frozen=True)
class Dataset:
    """Opens the batches that a run trains on and validates on.

    Args:
        train: `train(partition)` gives an iterator over this share's batches. It may be endless,
            and may offer `get_state() -> bytes` and `set_state(bytes)`; one that does not cannot
            be put into a checkpoint.
        val: `val(partition)` gives a finite iterator, the same batches at each call; or None.
        records: training rows in one epoch, over all shares.
        batch: rows of one global batch, over all shares.

    Attributes:
        varies: whether its batches have several shapes, of which each is meant to be compiled.
    """

    varies: ClassVar[bool] = False

    train: Callable[[DataPartition], Iterator[Batch]]
    val: Callable[[DataPartition], Iterator[Batch]] | None
    records: int
    batch: int
