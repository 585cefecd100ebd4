"""The rows of a table as a task keeps them: a list a field, and where they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bridges.finetune.examples import held_examples
from dew.cli.command import Settings
from dew.errors import InputRefused, listed


@dataclass(frozen=True)
class RowTable:
    """Fields of some rows.

    Args:
        fields: each field's values by its name, all of one length.
        dropped: rows that lacked one of them.
        records: rows of the table that was read.
        files: how many were read.
        ignored: names that were not read.
    """

    fields: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    dropped: int = 0
    records: int = 0
    files: int = 0
    ignored: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.fields.values()), ()))

    def __getitem__(self, name: str) -> Sequence[Any]:
        """Return a field's values."""
        return self.fields[name]

    def select(self, indices: Sequence[int] | np.ndarray) -> RowTable:
        """Return some of the rows."""
        chosen = [int(index) for index in indices]
        kept = {name: [values[i] for i in chosen] for name, values in self.fields.items()}
        return replace(self, fields=kept)


@dataclass(frozen=True)
class Examples:
    """What a task knows before the model is loaded.

    Args:
        train, validation: the rows; None where nothing is held out.
        names: of the labels, in the order of the head's outputs; empty where there are none.
        kind: what the task found the rows to be, in its own words.
    """

    train: Any
    validation: Any
    names: tuple[str, ...] = ()
    kind: str = ""


def row_table(records: Any, fields: Mapping[str, Sequence[Any]]) -> RowTable:
    """Return the rows of `fields` that are whole: no field of them is None.

    Args:
        records: what was read, for its counts.
        fields: each field's values, one a record.
    """
    rows = list(zip(*fields.values(), strict=True))
    kept = [row for row in rows if all(value is not None for value in row)]
    columns = list(zip(*kept, strict=True)) if kept else [()] * len(fields)
    return RowTable(
        {name: list(column) for name, column in zip(fields, columns, strict=True)},
        dropped=len(rows) - len(kept),
        records=len(rows),
        files=len(records.files),
        ignored=tuple(records.ignored),
    )


def split_sides(
    train: RowTable, validation: RowTable | None, settings: Settings
) -> tuple[RowTable, RowTable | None]:
    """Return both sides, the second one held out of the first where `eval_split` asks for it.

    Raises:
        InputRefused: nothing can be held out.
    """
    if validation is not None or not settings["eval_split"]:
        return train, validation
    # A path or the bytes of a file tell one row from another as well as its text does.
    keys = [repr(row) for row in zip(*train.fields.values(), strict=True)]
    return held_examples(train, keys, settings)


def refuse_rows(heading: str, problems: Sequence[str]) -> None:
    """Refuse rows with one line for each.

    Raises:
        InputRefused: there are problems.
    """
    if problems:
        raise InputRefused(listed(heading, list(problems)))
