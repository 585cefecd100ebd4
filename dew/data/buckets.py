"""Length buckets: rows of unequal length in batches padded to a few widths, each compiled once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from dew.data.dataset import DataPartition, Dataset
from dew.data.rows import check_indices, hashed
from dew.data.stream import epoch_order
from dew.errors import InputRefused, listed, shown

SMALLEST = 16
BATCH_ORDER = 1 << 40
"""Added to the epoch's number where the batches are shuffled, apart from the rows' own order."""


@dataclass(frozen=True)
class BucketDataset(Dataset):
    """A dataset whose batches have one of a few widths."""

    varies: ClassVar[bool] = True


@dataclass(frozen=True, eq=False)
class RaggedRows:
    """Rows with fields of unequal length, held end to end.

    Args:
        ragged: for each field the values of all rows, [sum of L_i, ...], in order.
        lengths: for each of these fields the rows' own lengths L_i, int64 [N].
        fixed: fields of one shape in each row, [N, ...].
        filling: what a ragged field is padded with, where it is not 0: -100 for labels, say.
    """

    ragged: Mapping[str, np.ndarray]
    lengths: Mapping[str, np.ndarray]
    fixed: Mapping[str, np.ndarray] = field(default_factory=dict)
    filling: Mapping[str, int | float] = field(default_factory=dict)

    @classmethod
    def joined(
        cls,
        fields: Mapping[str, Sequence[np.ndarray | Sequence[int]] | np.ndarray],
        *,
        filling: Mapping[str, int | float] | None = None,
    ) -> RaggedRows:
        """Return rows of fields that are each a list of [L_i, ...], or one array [N, ...].

        Integers of 64 bits, which JAX would cut to 32 in silence, are kept in 32.

        Raises:
            InputRefused: no ragged field, fields of different numbers of rows, a filling for a
                field that is not there, or an integer that 32 bits do not hold.
        """
        lists = {k: [np.asarray(v) for v in f] for k, f in fields.items() if not _is_array(f)}
        fixed = {k: np.asarray(f) for k, f in fields.items() if _is_array(f)}
        counts = {name: len(values) for name, values in fields.items()}
        wrong = [name for name in filling or {} if name not in lists]
        if not lists or len(set(counts.values())) > 1 or wrong:
            raise InputRefused(
                f"rows: fields of {counts} rows, ragged {sorted(lists)}, filled {wrong}. Expected "
                "one number of rows, at least one field that is a list of arrays, and fillings of "
                "such fields."
            )
        scalar = [name for name, values in lists.items() if values and not values[0].ndim]
        if scalar:
            raise InputRefused(
                f"rows: {', '.join(scalar)} hold one value a row. Give such a field as an array."
            )
        lengths = {k: np.array([len(v) for v in vs], np.int64) for k, vs in lists.items()}
        flat = {k: np.concatenate(vs) if vs else np.zeros(0, np.int32) for k, vs in lists.items()}
        flat, fixed = (
            {name: _in_32_bits(values, name) for name, values in part.items()}
            for part in (flat, fixed)
        )
        return cls(flat, lengths, fixed, dict(filling or {}))

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(next(iter(self.lengths.values())))

    @cached_property
    def longest(self) -> np.ndarray:
        """The longest of each row's fields, int64 [N]."""
        return np.max(np.stack(list(self.lengths.values())), axis=0)

    @cached_property
    def _starts(self) -> dict[str, np.ndarray]:
        return {name: np.cumsum(sizes) - sizes for name, sizes in self.lengths.items()}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the fields, their lengths and what they are padded with."""
        parts = {f"values of {name}": values for name, values in self.ragged.items()}
        parts |= {f"lengths of {name}": sizes for name, sizes in self.lengths.items()}
        parts |= {f"fixed {name}": values for name, values in self.fixed.items()}
        parts |= {f"filling of {k}": np.array([v], np.float64) for k, v in self.filling.items()}
        return hashed(parts)

    def padded(self, indices: np.ndarray, width: int, *, mask: str | None) -> dict[str, np.ndarray]:
        """Return the rows at `indices` [B], ragged fields as [B, width, ...], padded on the right.

        Args:
            indices: rows none of which is longer than the width; -1 for a row of padding alone.
            width: W.
            mask: the name of a further field, int32 [B, W], 1 where a row has a value in its
                longest field; None for no such field.

        Raises:
            InputRefused: an index outside the rows, a row longer than the width, or a mask of
                the name of a field.
        """
        real = indices >= 0
        check_indices(indices[real], len(self))
        if mask in (self.ragged.keys() | self.fixed.keys()):
            raise InputRefused(f"mask: there is a field {shown(mask)} already; name another.")
        if (self.longest[indices[real]] > width).any():
            raise InputRefused(
                f"rows: one of {self.longest[indices[real]].max()} positions does not fit {width}."
            )
        batch = {}
        columns = np.arange(width)
        for name, values in self.ragged.items():
            shape = (len(indices), width, *values.shape[1:])
            batch[name] = np.full(shape, self.filling.get(name, 0), values.dtype)
            inside = (columns < self.lengths[name][indices][:, None]) & real[:, None]
            places = self._starts[name][indices][:, None] + columns
            batch[name][inside] = values[places[inside]]
        for name, values in self.fixed.items():
            batch[name] = np.zeros((len(indices), *values.shape[1:]), values.dtype)
            batch[name][real] = values[indices[real]]
        if mask is not None:
            inside = (columns < self.longest[indices][:, None]) & real[:, None]
            batch[mask] = inside.astype(np.int32)
        return batch


@dataclass(frozen=True)
class BucketPlan:
    """Which rows make up each batch of one epoch, and how wide it is.

    Args:
        batches: int64 [batches, B]; -1 in the last batch of an epoch where no row is left.
        widths: int64 [batches].
    """

    batches: np.ndarray
    widths: np.ndarray


def bucket_widths(longest: int, widths: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the widths to pad to, rising: those given, or powers of two from 16 on.

    Args:
        longest: the length of the longest row, which must fit.
        widths: those to choose from; None for powers of two, the last cut to the longest row.

    Raises:
        InputRefused: a width below 1, or none that fits the longest row.
    """
    if widths is None:
        powers, width = [], SMALLEST
        while width < longest:
            powers.append(width)
            width *= 2
        return (*powers, max(longest, 1))
    chosen = tuple(sorted(set(widths)))
    if not chosen or chosen[0] < 1 or chosen[-1] < longest:
        raise InputRefused(
            f"widths: found {shown(list(widths))}, and the longest row has {longest} positions. "
            "Expected widths of at least 1, one of them as long as that; cut the rows or add one."
        )
    return chosen


def bucket_plan(
    lengths: np.ndarray, widths: Sequence[int], *, batch: int, order: np.ndarray
) -> BucketPlan:
    """Gather rows of like length into batches: in the given order, each row once.

    A row goes to the narrowest width that holds it, and a width's rows are cut into batches as
    they come. The rows left over at a width go to the next one up; of the widest, the last batch
    is filled with -1. So the number of batches of each width depends on the lengths alone.

    Args:
        lengths: of the rows, int64 [N].
        widths: rising; the last holds the longest row.
        batch: rows of a batch, B.
        order: a permutation of the rows.

    Returns:
        The batches, the narrowest first.
    """
    homes = np.searchsorted(np.asarray(widths), lengths[order])
    left = np.zeros(0, np.int64)
    batches, chosen = [], []
    for number, width in enumerate(widths):
        rows = np.concatenate([left, order[homes == number]])
        whole = len(rows) // batch * batch
        left = rows[whole:]
        if number == len(widths) - 1 and len(left):
            rows = np.concatenate([rows, np.full(batch - len(left), -1)])
            whole = len(rows)
        batches.append(rows[:whole].reshape(-1, batch))
        chosen += [width] * (whole // batch)
    return BucketPlan(np.concatenate(batches), np.array(chosen, np.int64))


class BucketStream:
    """An endless iterator over batches of like length, whose position is a number of batches.

    Each epoch takes every row once; its rows and its batches are shuffled. Where the rows do not
    fill the last batch of an epoch, rows of padding alone do, whose mask is 0. Share k of n takes
    the rows k, k + n, ... of each batch, so all shares are equally wide.

    Args:
        rows: what to read, at least one row.
        partition: this process's share.
        batch: rows of a global batch, a multiple of `partition.count`.
        widths: to choose from; None for powers of two. There are at most as many shapes.
        seed: shuffles.
        mask: the name of the field that says what is padding, or None.

    Raises:
        InputRefused: no rows, a row too long, or a batch that does not divide.
    """

    def __init__(
        self,
        rows: RaggedRows,
        partition: DataPartition = DataPartition(),  # noqa: B008 (frozen)
        *,
        batch: int,
        widths: Sequence[int] | None = None,
        seed: int = 0,
        mask: str | None = "mask",
    ) -> None:
        if not len(rows):
            raise InputRefused("the training data holds no row; give it at least one.")
        self._rows, self._share, self._batch = rows, partition.of(batch), batch
        self._widths = bucket_widths(int(rows.longest.max()), widths)
        self._seed, self._mask = int(seed), mask
        self._taken = 0
        self._plan: tuple[int, BucketPlan] | None = None
        self._batches = len(self._epoch(0).batches)

    def __iter__(self) -> BucketStream:
        """Return the stream itself."""
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        """Return this share of the next global batch, one of `widths` wide."""
        epoch, number = divmod(self._taken, self._batches)
        plan = self._epoch(epoch)
        indices = plan.batches[number][self._share]
        batch = self._rows.padded(indices, int(plan.widths[number]), mask=self._mask)
        self._taken += 1
        return batch

    @property
    def epoch(self) -> float:
        """Epochs consumed so far."""
        return self._taken / self._batches

    @property
    def batches_an_epoch(self) -> int:
        """Batches of one epoch, the same in each."""
        return self._batches

    def get_state(self) -> bytes:
        """Return the position as JSON, the same on every process."""
        return json.dumps({"batches": self._taken, **self._identity()}).encode()

    def set_state(self, state: bytes) -> None:
        """Go on at a position that `get_state` gave, on any number of processes.

        Raises:
            InputRefused: not such a position, or one in other rows, or with another seed, batch
                or widths, which give other batches.
        """
        try:
            saved = json.loads(bytes(state).decode())
        except (ValueError, RecursionError):
            saved = None
        taken = saved.get("batches") if isinstance(saved, dict) else None
        if not isinstance(saved, dict) or type(taken) is not int or taken < 0:
            raise InputRefused(
                f"data position: found {shown(bytes(state))}; expected what get_state() of a "
                "bucketed stream gave."
            )
        problems = [
            f"{name}: the position has {shown(saved.get(name))}, this data {shown(value)}"
            for name, value in self._identity().items()
            if saved.get(name) != value
        ]
        if problems:
            heading = "the saved data position is not one in this data; go on with the same:"
            raise InputRefused(listed(heading, problems))
        self._taken = taken

    def _identity(self) -> dict[str, object]:
        return {
            "seed": self._seed,
            "batch": self._batch,
            "widths": list(self._widths),
            "fingerprint": self._rows.fingerprint,
        }

    def _epoch(self, epoch: int) -> BucketPlan:
        if self._plan is None or self._plan[0] != epoch:
            order = epoch_order(len(self._rows), seed=self._seed, epoch=epoch)
            plan = bucket_plan(self._rows.longest, self._widths, batch=self._batch, order=order)
            mixed = epoch_order(len(plan.batches), seed=self._seed, epoch=epoch + BATCH_ORDER)
            self._plan = epoch, BucketPlan(plan.batches[mixed], plan.widths[mixed])
        return self._plan[1]


def bucket_batches(
    rows: RaggedRows,
    partition: DataPartition = DataPartition(),  # noqa: B008 (frozen)
    *,
    batch: int,
    widths: Sequence[int] | None = None,
    mask: str | None = "mask",
) -> Iterator[dict[str, np.ndarray]]:
    """Give every row once, those of like length together; the last batch is filled with padding.

    Args:
        rows: what to read.
        partition: this process's share of each global batch.
        batch: rows of a global batch, a multiple of `partition.count`.
        widths: to choose from; None for powers of two.
        mask: the name of the field that says what is padding, or None.

    Raises:
        InputRefused: see `BucketStream`, at the call and not at the first batch.
    """
    share = partition.of(batch)
    chosen = bucket_widths(int(rows.longest.max()) if len(rows) else 1, widths)
    plan = bucket_plan(rows.longest, chosen, batch=batch, order=np.arange(len(rows)))
    return (
        rows.padded(indices[share], int(width), mask=mask)
        for indices, width in zip(plan.batches, plan.widths, strict=True)
    )


def bucketed(
    rows: RaggedRows,
    *,
    batch: int,
    widths: Sequence[int] | None = None,
    seed: int = 0,
    mask: str | None = "mask",
    eval_rows: RaggedRows | None = None,
) -> Dataset:
    """Return a dataset whose batches are padded to one of a few widths.

    Documents become rows of a language model as `RaggedRows({"text": documents.tokens}, {"text":
    documents.lengths})` with the mask named `segments`.

    Args:
        rows: to train on.
        batch: rows of a global batch.
        widths: to choose from; None for powers of two up to the longest row.
        seed: shuffles rows and batches, anew each epoch.
        mask: the name of the field that says what is padding, or None.
        eval_rows: to validate on, or None.
    """
    options = {"batch": batch, "widths": widths, "mask": mask}
    return BucketDataset(
        train=partial(BucketStream, rows, seed=seed, **options),
        val=None if eval_rows is None else partial(bucket_batches, eval_rows, **options),
        records=len(rows),
        batch=batch,
    )


def _in_32_bits(values: np.ndarray, name: str) -> np.ndarray:
    if values.dtype not in (np.int64, np.uint64):
        return values
    if values.size and (values.max() >= 2**31 or values.min() < -(2**31)):
        raise InputRefused(
            f"rows: {name} goes from {values.min()} to {values.max()}, and JAX holds int32. "
            "Expected integers of 32 bits."
        )
    return values.astype(np.int32)


def _is_array(values: object) -> bool:
    return isinstance(values, np.ndarray) and values.dtype != object
