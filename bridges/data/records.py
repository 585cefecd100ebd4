"""Random access to the raw rows of any source: files, folders, hub datasets, values in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bridges.data.arrow_tables import arrow_table, dataset_table, parquet_table
from bridges.data.data_files import SPLITS, DataFiles
from bridges.data.data_files import data_files as find_data
from bridges.data.line_tables import LineTable, csv_table, json_table
from bridges.data.media_folders import media_table
from bridges.data.tables import ListTable, Table, column_table, joined_kind, list_table
from bridges.data.text_sources import ENCODINGS, read_text
from bridges.files.regular_file import shown_path
from dew.errors import InputRefused, UnknownName, listed, nearest, shown

RecordSource = (
    str | os.PathLike[str] | Sequence[Any] | Mapping[str, Any] | Any  # a `datasets` object, too
)
READ_ROWS = 1024


class Records:
    """Rows of named values, of which any may be read at any time.

    Args:
        tables: what holds the rows, in order; their columns have the same names.
        columns: the columns that are read; None for all.
        files: the files behind them.
        ignored: names in a folder that were not read.
        indices: which rows of the tables these are, in order; None for all.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        columns: Sequence[str] | None = None,
        files: Sequence[Path] = (),
        ignored: Sequence[str] = (),
        indices: np.ndarray | None = None,
    ) -> None:
        self._tables, kinds = _unified(tables)
        self.columns = _chosen(kinds, columns)
        self.files = tuple(files)
        self.ignored = tuple(ignored)
        self._starts = np.cumsum([0, *(len(table) for table in self._tables)])
        self._indices = indices

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._starts[-1]) if self._indices is None else len(self._indices)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row; a negative index counts from the end."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.take([index % len(self)])[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Give the rows in order, some at a time read from their file."""
        for start in range(0, len(self), READ_ROWS):
            yield from self.take(np.arange(start, min(start + READ_ROWS, len(self))))

    def take(
        self, indices: Sequence[int] | np.ndarray, *, columns: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows at `indices`, in that order.

        Args:
            indices: each 0 to the number of rows - 1.
            columns: what to read of them; None for all columns.

        Raises:
            InputRefused: an index outside, or a file that changed. UnknownName: another column.
        """
        wanted = np.asarray(indices, np.int64).reshape(-1)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise InputRefused(
                f"rows: asked for {wanted.min()} to {wanted.max()}; there are {len(self)}, from 0."
            )
        names = list(_chosen(self.columns, columns))
        wanted = wanted if self._indices is None else self._indices[wanted]
        homes = np.searchsorted(self._starts, wanted, side="right") - 1
        rows: list[dict[str, Any]] = [{}] * len(wanted)
        for home in np.unique(homes).tolist():
            places = np.flatnonzero(homes == home)
            inside = (wanted[places] - self._starts[home]).tolist()
            found = self._tables[home].take(inside, names)
            for place, row in zip(places.tolist(), found, strict=True):
                rows[place] = row
        return rows

    def column(self, name: str) -> list[Any]:
        """Return the values of one column.

        Raises:
            UnknownName: no such column.
        """
        return [row[name] for row in self.take(np.arange(len(self)), columns=[name])]

    def restricted(self, columns: Sequence[str] | None) -> Records:
        """Return the same rows with fewer columns; None for all of them.

        Raises:
            UnknownName: a column that is not there.
        """
        if columns is None:
            return self
        _chosen(self.columns, columns)
        return Records(
            self._tables,
            columns=columns,
            files=self.files,
            ignored=self.ignored,
            indices=self._indices,
        )

    def select(self, indices: Sequence[int] | np.ndarray) -> Records:
        """Return the rows at `indices` as records of their own; nothing is copied.

        Raises:
            InputRefused: an index outside.
        """
        wanted = np.asarray(indices, np.int64).reshape(-1)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise InputRefused(
                f"rows: asked for {wanted.min()} to {wanted.max()}; there are {len(self)}, from 0."
            )
        return Records(
            self._tables,
            columns=list(self.columns),
            files=self.files,
            ignored=self.ignored,
            indices=wanted if self._indices is None else self._indices[wanted],
        )

    def place(self, index: int) -> str:
        """Return where a row stands, for a message: its file and line, or its number."""
        row = index if self._indices is None else int(self._indices[index])
        home = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._tables[home].place(row - int(self._starts[home]))

    def labels(self, name: str) -> tuple[str, ...] | None:
        """Return the class names of a column of their numbers, where the source has them.

        Raises:
            InputRefused: files that name them differently. UnknownName: no such column.
        """
        _chosen(self.columns, [name])
        found = list(dict.fromkeys(table.labels(name) for table in self._tables))
        if len(found) > 1:
            raise InputRefused(
                f"column {shown(name)}: its files name different classes: "
                f"{'; '.join(shown(names) for names in found)}. Expected the same in all."
            )
        return found[0] if found else None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the contents and of which rows are read, in hexadecimal."""
        digest = hashlib.sha256(repr(sorted(self.columns)).encode())
        for table in self._tables:
            digest.update(f"{len(table)} {table.digest()}\n".encode())
        if self._indices is not None:
            digest.update(self._indices.astype("<i8").tobytes())
        return digest.hexdigest()


def read_records(
    source: RecordSource,
    *,
    split: str = "train",
    name: str | None = None,
    data_files: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    encoding: str = "utf-8",
    lines: bool = False,
) -> Records:
    """Return the rows of a source.

    Args:
        source: a `.csv`, `.tsv`, `.json`, `.jsonl`, `.parquet` or `.arrow` file, a pattern, or a
            folder of such files; a folder that `datasets.save_to_disk` wrote; a folder of images
            or sounds, a folder a class or with metadata.csv or .jsonl; the id of a dataset on the
            hub; several of these, or a dictionary of them by split; a list of dictionaries, a
            dictionary of columns, a `datasets.Dataset` or `DatasetDict`.
        split: which files or parts: `train`, `validation`, `test` or a name of the source's own.
        name: which configuration of a repository, where its README names several.
        data_files: patterns of the files that are meant, in a folder or a repository.
        columns: the columns to read; None for all.
        encoding: of text, CSV and JSON files: utf-8, latin-1 or cp1252.
        lines: whether `.txt` files count, each line a row with the column `text`.

    Returns:
        The rows. An image or a sound is a `Path`, or the bytes of its file; a class is a number
        whose name `labels` gives.

    Raises:
        InputRefused: a source that cannot be read, rows that are damaged, or files whose columns
            differ. UnknownName: a split, a column or an encoding that is not there.
    """
    if encoding not in ENCODINGS:
        raise UnknownName(
            f"encoding: found {shown(encoding)}, expected one of {', '.join(ENCODINGS)}"
            f"{nearest(encoding, ENCODINGS)}"
        )
    if isinstance(source, Records):
        _check_only_split(split)
        return source.restricted(columns)
    if isinstance(source, str | os.PathLike):
        files = find_data(source, split=split, name=name, patterns=data_files, lines=lines)
        return _of_files(files, columns, encoding)
    if name is not None or data_files is not None:
        raise InputRefused(
            "name and data_files: of a folder or a dataset of the hub; this source is neither."
        )
    if isinstance(source, Mapping):
        if _is_splits(source):
            part = _part(source, split)
            return read_records(part, columns=columns, encoding=encoding, lines=lines)
        _check_only_split(split)
        return Records([column_table(source, "the data")], columns=columns)
    if hasattr(source, "features") and hasattr(source, "with_format"):
        if not hasattr(source, "__len__"):
            raise InputRefused(
                "the data is an iterable dataset, which has no rows to look up. Expected a "
                "datasets.Dataset; or read it with streaming=True."
            )
        _check_only_split(split, str(getattr(source, "split", None) or "train"))
        return Records([dataset_table(source, "the dataset")], columns=columns)
    return _of_sequence(source, split, columns, encoding, lines)


def file_table(path: Path, *, encoding: str, described: Any = None) -> Table:
    """Return the rows of one file of any kind that is read as a table."""
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return csv_table(path, encoding=encoding)
    if suffix == ".parquet":
        return parquet_table(path)
    if suffix == ".arrow":
        return arrow_table(path, described)
    if suffix == ".txt":
        text = read_text(path, encoding=encoding).split("\n")
        rows = [{"text": line.removesuffix("\r")} for line in (text if text[-1] else text[:-1])]
        places = [f"line {number}" for number in range(1, len(rows) + 1)]
        return ListTable(rows, {"text": "text"}, shown_path(path), places)
    if suffix == ".tar":
        raise InputRefused(
            f"{shown_path(path)}: a tar shard, which is read from its start to its end. Read it "
            "with streaming=True."
        )
    return json_table(path, encoding=encoding)


def _of_files(files: DataFiles, columns: Sequence[str] | None, encoding: str) -> Records:
    if files.media:
        table = media_table(files.folder, files.media, encoding=encoding)
        paths = [files.folder / name for name in table.names]
        rest = set(files.media) - set(table.names)
        return Records(
            [table], columns=columns, files=paths, ignored=sorted({*files.ignored, *rest})
        )
    tables = [
        file_table(path, encoding=encoding, described=files.described) for path in files.paths
    ]
    return Records(tables, columns=columns, files=files.paths, ignored=files.ignored)


def _of_sequence(
    source: Any, split: str, columns: Sequence[str] | None, encoding: str, lines: bool
) -> Records:
    """Return the rows of a list: of dictionaries, or of sources one after another."""
    if not isinstance(source, Sequence) or not len(source):
        raise InputRefused(
            f"data: found {shown(type(source).__name__)}"
            f"{' without anything in it' if isinstance(source, Sequence) else ''}. Expected a "
            "path, a list of dictionaries, a dictionary of columns or a dataset."
        )
    if isinstance(source[0], Mapping) and not hasattr(source[0], "features"):
        _check_only_split(split)
        return Records([list_table(source, "the data")], columns=columns)
    parts = [read_records(part, split=split, encoding=encoding, lines=lines) for part in source]
    return Records(
        [table for part in parts for table in part._tables],
        columns=columns,
        files=[file for part in parts for file in part.files],
        ignored=[name for part in parts for name in part.ignored],
    )


def _check_only_split(split: str, own: str = "train") -> None:
    """Refuse a split of data that is one, unless it is meant by its own name or as `train`."""
    if split not in ("train", own):
        raise UnknownName(f"split: found {shown(split)}, but this data has one split, {own!r}.")


def _is_splits(source: Mapping[str, Any]) -> bool:
    """Say whether a dictionary holds a source for each split, and not columns."""
    if any(hasattr(part, "features") for part in source.values()):
        return True
    return bool(source) and set(source) <= set().union(*SPLITS.values())


def _part(source: Mapping[str, Any], split: str) -> Any:
    """Return the source of one split."""
    words = next((words for words in SPLITS.values() if split in words), {split})
    for name in (split, *sorted(words)):
        if name in source:
            return source[name]
    raise UnknownName(
        f"split: found {shown(split)}, but the data has {', '.join(map(shown, source))}"
        f"{nearest(split, source)}"
    )


def _unified(tables: Sequence[Table]) -> tuple[list[Table], dict[str, str]]:
    """Return the tables with one kind a column, and those kinds.

    Raises:
        InputRefused: tables with different columns; all of them are named.
    """
    if not tables:
        return [], {}
    first = tables[0]
    kinds, problems = dict(first.columns), []
    for table in tables[1:]:
        missing = [name for name in kinds if name not in table.columns]
        further = [name for name in table.columns if name not in kinds]
        problems += [f"{_file(table)}: no column {shown(name, 60)}" for name in missing]
        problems += [f"{_file(table)}: a column {shown(name, 60)} more" for name in further]
        for name in kinds.keys() & table.columns.keys():
            kind = joined_kind(kinds[name], table.columns[name])
            if kind is None and _are_csv(first, table):
                kind = "text"
            if kind is None:
                problems.append(
                    f"{_file(table)}: column {shown(name, 60)} holds {table.columns[name]}, not "
                    f"{kinds[name]}"
                )
            kinds[name] = kind or kinds[name]
    if problems:
        raise InputRefused(
            listed(
                f"files whose columns differ from those of {_file(first)}. Expected the same in "
                "each; name one kind of file, or give them the same columns:",
                problems,
            )
        )
    return [
        table.with_kinds(kinds) if isinstance(table, LineTable) and table.delimiter else table
        for table in tables
    ], kinds


def _are_csv(*tables: Table) -> bool:
    return all(isinstance(table, LineTable) and table.delimiter for table in tables)


def _file(table: Table) -> str:
    return table.place(0).rsplit(": ", 1)[0] if len(table) else "an empty file"


def _chosen(kinds: Mapping[str, str], columns: Sequence[str] | None) -> dict[str, str]:
    """Return the kinds of the columns that are asked for.

    Raises:
        UnknownName: one that is not there.
    """
    if columns is None:
        return dict(kinds)
    wrong = [name for name in columns if name not in kinds]
    if wrong:
        there = ", ".join(shown(name, 60) for name in list(kinds)[:12]) or "none"
        raise UnknownName(
            f"no column {', '.join(shown(name, 60) for name in wrong)}; there is {there}"
            f"{nearest(wrong[0], kinds)}"
        )
    return {name: kinds[name] for name in columns}
