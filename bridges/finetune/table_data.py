"""The data of a run that learns labels: rows of unequal length, batched at a shared width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from bridges.finetune.encoded_rows import EncodedRows
from dew.data import DataPartition, Dataset, RowStream
from dew.errors import InputRefused, shown

SHOWN_LABELS = 12
EXAMPLE_CHARACTERS = 600


@dataclass(frozen=True)
class TableReport:
    """What became of a table, told before the first step.

    Args:
        files: how many were read.
        ignored: names in the folder that were not read.
        records: rows found, those held out among them.
        rows: training rows kept.
        validation_rows: rows held out.
        seq_len: the most tokens of a row.
        tokens: those of the training rows.
        cut: rows that lost tokens to that limit.
        dropped: rows without a label, or without text.
        targets: labels that the loss counts in one epoch.
        labels: how often each label stands in the training rows; empty for numbers.
        example: the first row as the model reads it.
        example_label: its label.
        fingerprint: SHA-256 of the training rows, which a resumed run must have again.
        unit: what `seq_len` and `tokens` count.
    """

    files: int
    ignored: tuple[str, ...]
    records: int
    rows: int
    validation_rows: int
    seq_len: int
    tokens: int
    cut: int
    dropped: int
    targets: int
    labels: Mapping[str, int] = field(default_factory=dict)
    example: str = ""
    example_label: str = ""
    fingerprint: str = ""
    unit: str = "tokens"

    def __str__(self) -> str:
        """Return the report for reading, a fact a line."""
        lines = [
            f"records       {self.records:,} in {self.files:,} file{'s'[: self.files != 1]}",
            f"rows kept     {self.rows:,} to train on, {self.tokens:,} {self.unit}",
            f"cut           {self.cut:,} rows longer than {self.seq_len:,} {self.unit}",
            f"dropped       {self.dropped:,} rows without a field or its label",
            f"targets       {self.targets:,} labels an epoch",
            f"validation    {f'{self.validation_rows:,} rows' if self.validation_rows else 'none'}",
            f"fingerprint   {self.fingerprint[:16]}",
        ]
        if self.labels:
            most = sorted(self.labels.items(), key=lambda item: -item[1])[:SHOWN_LABELS]
            named = ", ".join(f"{shown(name)[1:-1]} {count:,}" for name, count in most)
            more = len(self.labels) - len(most)
            lines.insert(5, f"labels        {named}{f' and {more} more' if more > 0 else ''}")
        text = shown(self.example, EXAMPLE_CHARACTERS)
        lines.append(f"first row     {text} -> {self.example_label}")
        if self.ignored:
            lines.append(f"not read      {', '.join(shown(n)[1:-1] for n in self.ignored[:5])}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them."""
        return asdict(self) | {"ignored": list(self.ignored), "labels": dict(self.labels)}


@dataclass(frozen=True)
class TableDataset(Dataset):
    """A dataset of rows with labels, with what is known about it; see `dew.data.Dataset`.

    Args:
        rows: the training rows.
        eval_rows: the validation rows, or None.
        report: what became of the table.
        examples: what the validation rows are made of, for scores that read more than numbers.
    """

    varies: ClassVar[bool] = True

    rows: Any
    eval_rows: Any
    report: TableReport
    examples: Any = None


class TableStream(RowStream):
    """A `RowStream` whose batches have one width on every process."""

    def __next__(self) -> dict[str, np.ndarray]:
        """Return this share of the next global batch."""
        indices = self._indices(self._consumed, self._consumed + self._batch)
        rows: Any = self._rows
        taken, width = indices[self._share], rows.width(indices)
        if getattr(rows, "varied", False):
            # What is drawn for a row depends on its place in the run alone, so a resumed run
            # draws it again.
            places = np.arange(self._consumed, self._consumed + self._batch)[self._share]
            batch = rows.take_varied(taken, width, places)
        else:
            batch = rows.take(taken, width)
        self._consumed += self._batch
        return batch


def table_dataset(
    rows: EncodedRows,
    eval_rows: EncodedRows | None,
    report: TableReport,
    *,
    batch: int,
    eval_batch: int,
    seed: int,
    examples: Any = None,
) -> TableDataset:
    """Return the dataset over finished rows.

    Raises:
        InputRefused: nothing to train on, or nothing to evaluate where something is held out.
    """
    for name, found in (("training", rows), ("validation", eval_rows)):
        if found is not None and not len(found):
            raise InputRefused(
                f"data: no usable row in the {name} data: {report.records} records, "
                f"{report.dropped} of them without a field or its label. Check the columns."
            )
    return TableDataset(
        train=partial(TableStream, rows, batch=batch, seed=seed),
        val=None if eval_rows is None else partial(table_batches, eval_rows, batch=eval_batch),
        records=len(rows),
        batch=batch,
        rows=rows,
        eval_rows=eval_rows,
        report=report,
        examples=examples,
    )


def table_batches(
    rows: EncodedRows,
    partition: DataPartition = DataPartition(),  # noqa: B008 (frozen)
    *,
    batch: int,
) -> Iterator[dict[str, np.ndarray]]:
    """Give every row once, those of like length together.

    The last global batch is filled up with copies of a row whose `weights` are 0. `record` says
    which row each is.

    Args:
        rows: what to read.
        partition: this process's share.
        batch: rows of a global batch, a multiple of `partition.count`.

    Raises:
        InputRefused: a batch that does not divide, at the call and not at the first batch.
    """
    return _table_batches(rows, partition.of(batch), batch)


def _table_batches(rows: Any, share: slice, batch: int) -> Iterator[dict[str, np.ndarray]]:
    order = np.argsort(-rows.lengths, kind="stable")
    for start in range(0, len(rows), batch):
        indices = order[start : start + batch]
        filler = batch - len(indices)
        whole = np.concatenate([indices, np.repeat(indices[-1:], filler)])
        weights = (np.arange(batch) < len(indices)).astype(np.float32)
        fields = rows.take(whole[share], rows.width(whole))
        yield {**fields, "weights": weights[share], "record": whole[share].astype(np.int32)}
