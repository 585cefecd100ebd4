"""Several sources as one table: each with its split, its columns and the share that is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridges.data.records import Records, read_records
from dew.data.stream import epoch_order
from dew.errors import InputRefused, UnknownName, listed, nearest, shown

KEYS = ("path", "name", "data_files", "split", "columns", "fraction")


@dataclass(frozen=True)
class RenamedTable:
    """Records as a table of a larger one, with columns of other names.

    Args:
        records: the rows.
        names: the records' own name of each column.
    """

    records: Records
    names: Mapping[str, str]

    @property
    def columns(self) -> Mapping[str, str]:
        """The kind of each column."""
        return {ours: self.records.columns[theirs] for ours, theirs in self.names.items()}

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.records)

    def take(self, indices: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows at `indices`, each with those columns."""
        rows = self.records.take(indices, columns=[self.names[name] for name in columns])
        return [{name: row[self.names[name]] for name in columns} for row in rows]

    def place(self, index: int) -> str:
        """Return where a row stands."""
        return self.records.place(index)

    def labels(self, name: str) -> tuple[str, ...] | None:
        """Return the names of a column's classes."""
        return self.records.labels(self.names[name])

    def digest(self) -> str:
        """Return the hash of the rows and of the columns' names."""
        return f"{self.records.fingerprint} {dict(self.names)}"


def read_mixture(
    parts: Sequence[Mapping[str, Any]], *, encoding: str = "utf-8", seed: int = 0
) -> Records:
    """Return the rows of several sources, one after another.

    Args:
        parts: for each source `path`, as `read_records` takes it; and, where they are needed,
            `name`, the configuration of a repository that has several; `data_files`, patterns of
            its files; `split`, train by default; `columns`, a list of those that are read or the
            new names of them by their own; and `fraction`, the share of the rows, above 0 and at
            most 1, chosen by the seed.
        encoding: of text, CSV and JSON files.
        seed: chooses the rows of a fraction.

    Raises:
        InputRefused: no part, a part without a path, a fraction out of its range, or parts with
            different columns. UnknownName: a key, a split or a column that is not there.
    """
    if not parts:
        raise InputRefused("datasets: no part; expected at least one, with a path.")
    tables, files, ignored = [], [], []
    for number, part in enumerate(parts, 1):
        records = _read_part(part, number, encoding=encoding, seed=seed)
        columns = part.get("columns") or list(records.columns)
        if not isinstance(columns, Mapping):
            columns = {name: name for name in columns}
        ours = {str(new): str(own) for own, new in columns.items()}
        tables.append(RenamedTable(records.restricted(list(ours.values())), ours))
        files += records.files
        ignored += records.ignored
    return Records(tables, files=files, ignored=ignored)


def _read_part(part: Mapping[str, Any], number: int, *, encoding: str, seed: int) -> Records:
    where = f"datasets: part {number}"
    wrong = [key for key in part if key not in KEYS]
    if wrong:
        raise UnknownName(
            listed(
                f"{where}: keys that are not known. Expected {', '.join(KEYS)}:",
                [f"{shown(key)}{nearest(str(key), KEYS)}" for key in wrong],
            )
        )
    if "path" not in part:
        raise InputRefused(f"{where}: no path. Expected a file, a folder or a dataset's id.")
    fraction = part.get("fraction", 1)
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise InputRefused(
            f"{where}: fraction is {shown(fraction)}; expected a share above 0 and at most 1."
        )
    records = read_records(
        part["path"],
        name=part.get("name"),
        data_files=part.get("data_files"),
        split=part.get("split", "train"),
        encoding=encoding,
    )
    if fraction == 1:
        return records
    kept = max(1, round(fraction * len(records)))
    return records.select(np.sort(epoch_order(len(records), seed=seed, epoch=0)[:kept]))
