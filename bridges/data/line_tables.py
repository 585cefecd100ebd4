"""Rows of JSON lines and of CSV files: parsed once in small files, found by byte in large ones."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bridges.data.json_rows import LINE_LIMIT, lines, starts_array, whole_value
from bridges.data.row_problems import RowProblems, refuse_pointer
from bridges.data.tables import (
    FileState,
    ListTable,
    Table,
    add_kinds,
    column_table,
    hashed_file,
    list_table,
)
from bridges.files.regular_file import open_regular, shown_path
from dew.errors import InputRefused, shown

LARGE = 32 << 20
"""From how many bytes on a file's rows are parsed when they are asked for, and not kept."""
WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})")
NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
# 007 and +49 are names of things; of twenty digits a float keeps sixteen.
NO_AMOUNT = re.compile(r"[-+]?0[0-9]+|\+[0-9]+|-?[0-9]{20,}")
FLAGS = {"true": True, "True": True, "false": False, "False": False}
DELIMITERS = {".csv": ",", ".tsv": "\t"}
EXPECTED_JSON = "Expected a JSON object on each line; repair or remove these:"
EXPECTED_CSV = "Expected the fields that the first line names; repair or remove these:"


@dataclass(frozen=True)
class LineTable:
    """Rows of one file that stand one after another.

    Args:
        state: the file, as it was when it was read through.
        spans: int64 [N, 2], the first byte of each row and the one after its last.
        numbers: int64 [N], the line on which each row begins, from 1.
        columns: the kind of each column.
        encoding: of the file.
        delimiter: between the fields of a CSV row; None for JSON lines.
        rows: the rows as they stand in the file, or None where they are read when asked for.
    """

    state: FileState
    spans: np.ndarray
    numbers: np.ndarray
    columns: Mapping[str, str]
    encoding: str
    delimiter: str | None = None
    rows: Sequence[Mapping[str, Any]] | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.spans)

    def take(self, indices: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows at `indices`, each with those columns."""
        rows = [self.rows[n] for n in indices] if self.rows is not None else self._read(indices)
        if self.delimiter is None:
            return [{name: row.get(name) for name in columns} for row in rows]
        return [{name: cell(row[name], self.columns[name]) for name in columns} for row in rows]

    def place(self, index: int) -> str:
        """Return the line on which a row begins."""
        return f"{shown_path(self.state.path)}: line {self.numbers[index]}"

    def labels(self, name: str) -> None:
        """Return None: such files name no classes."""
        del name

    def digest(self) -> str:
        """Return the hash of the file."""
        self.state.check("its hashing")
        return hashed_file(self.state.path)

    def with_kinds(self, kinds: Mapping[str, str]) -> LineTable:
        """Return the table with its columns read as other kinds."""
        return replace(self, columns={name: kinds[name] for name in self.columns})

    def _read(self, indices: Sequence[int]) -> list[Mapping[str, Any]]:
        """Parse rows from their bytes."""
        if not len(indices):
            return []
        first = int(self.numbers[indices[0]])
        self.state.check(f"line {first}")
        rows = []
        with open_regular(self.state.path) as file:
            for index in indices:
                start, stop = self.spans[index].tolist()
                data = os.pread(file.fileno(), stop - start, start)
                try:
                    rows.append(self._parsed(data.decode(self.encoding)))
                except (ValueError, csv.Error, StopIteration):
                    raise InputRefused(
                        f"{self.place(index)} (byte {start}) no longer holds the row that it held "
                        "when the file was opened. Put the file as it was back and resume."
                    ) from None
        return rows

    def _parsed(self, text: str) -> Mapping[str, Any]:
        if self.delimiter is None:
            row = json.loads(text)
            if not isinstance(row, dict):
                raise ValueError
            return row
        with field_limit():
            fields = next(csv.reader(io.StringIO(text, newline="\n"), delimiter=self.delimiter))
        return dict(zip(self.columns, fields, strict=True))


def json_table(path: Path, *, encoding: str) -> Table:
    """Return the rows of a JSON file: one object a line, an array of them, or columns.

    An object alone is taken as columns, lists of one length; or, if a single one of its values is
    a list of objects, as those.

    Raises:
        InputRefused: lines that are not JSON objects, by line up to ten; or another content.
    """
    with open_regular(path) as file:
        if starts_array(file, path):
            return list_table(whole_value(file, path, encoding), shown_path(path))
        if path.suffix.lower() == ".json":
            columns = object_table(file, path, encoding)
            if columns is not None:
                return columns
        kinds: dict[str, str] = {}
        problems = RowProblems(path, EXPECTED_JSON)
        keep = os.fstat(file.fileno()).st_size < LARGE
        state, spans, numbers, rows = FileState.of(path), [], [], []
        for place, span, row in lines(file, path, encoding, problems):
            if not isinstance(row, dict):
                problems.add(place, f"no JSON object but {shown(row, 60)}")
                continue
            add_kinds(kinds, row)
            spans.append(span)
            numbers.append(int(place.removeprefix("line ")))
            if keep:
                rows.append(row)
        problems.refuse()
    return LineTable(
        state,
        np.array(spans, np.int64).reshape(-1, 2),
        np.array(numbers, np.int64),
        kinds,
        encoding,
        rows=rows if keep else None,
    )


def object_table(file: BinaryIO, path: Path, encoding: str) -> ListTable | None:
    """Return the table of a file that is one object; None, at its start, if it is JSON lines."""
    start = file.tell()
    first = file.readline(LINE_LIMIT)
    rest = file.read(1 << 16).strip()
    file.seek(start)
    try:
        json.loads(first.decode(encoding))
        if rest:
            return None
    except (ValueError, RecursionError):
        pass
    try:
        value = whole_value(file, path, encoding)
    except InputRefused:
        if len(first.strip()) < len(b"{}"):  # an object laid out over lines begins with a brace
            raise
        value = None
    file.seek(start)
    if not isinstance(value, dict):
        return None
    lists = {name: part for name, part in value.items() if isinstance(part, list)}
    objects = [part for part in lists.values() if part and all(isinstance(r, dict) for r in part)]
    if len(objects) == 1 and len(lists) == 1:
        return list_table(objects[0], shown_path(path))
    if len(lists) == len(value) and lists:
        return column_table(lists, shown_path(path))
    return None


def csv_table(path: Path, *, encoding: str) -> LineTable:
    """Return the rows of a CSV or TSV file, whose first line names the columns.

    A field may be quoted, and then hold line ends. A column whose every field is a whole number
    as Python writes it, a number, or true or false, is read as that, with None for an empty
    field; any other is text as it stands.

    Raises:
        InputRefused: no first line, names that are empty or come twice, bytes of another encoding,
            or rows of another length than the first, by line up to ten.
    """
    delimiter = DELIMITERS[path.suffix.lower()]
    problems = RowProblems(path, EXPECTED_CSV)
    with open_regular(path) as file:
        keep = os.fstat(file.fileno()).st_size < LARGE
        state, spans, numbers, rows = FileState.of(path), [], [], []
        names: list[str] = []
        seen: list[_ColumnKind] = []
        for number, span, fields in csv_rows(file, path, encoding, delimiter, problems):
            if not names:
                names = checked_names(fields, path)
                seen = [_ColumnKind() for _ in names]
                continue
            if len(fields) != len(names):
                problems.add(f"line {number}", f"{len(fields)} fields, not {len(names)}")
                continue
            for kind, field in zip(seen, fields, strict=True):
                kind.add(field)
            spans.append(span)
            numbers.append(number)
            if keep:
                rows.append(dict(zip(names, fields, strict=True)))
    problems.refuse()
    if not names:
        raise InputRefused(f"{shown_path(path)}: empty. Expected a line that names the columns.")
    return LineTable(
        state,
        np.array(spans, np.int64).reshape(-1, 2),
        np.array(numbers, np.int64),
        dict(zip(names, (kind.name for kind in seen), strict=True)),
        encoding,
        delimiter,
        rows=rows if keep else None,
    )


def csv_rows(
    file: BinaryIO,
    path: Path,
    encoding: str,
    delimiter: str,
    problems: RowProblems,
    *,
    number: int = 0,
) -> Iterator[tuple[int, tuple[int, int], list[str]]]:
    """Give the rows of a CSV file from where it stands, its line of names among them.

    Args:
        file: at the first byte of a row.
        path: the file, for messages.
        encoding: of the file.
        delimiter: between fields.
        problems: takes what ends the reading before the file ends.
        number: how many lines stand before the first one.

    Returns:
        An iterator over the line a row begins on, its first byte and the one after its last, and
        its fields.
    """
    start = end = file.tell()
    if not start:
        head = file.read(64)
        refuse_pointer(head, path)
        start = end = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
        file.seek(start)

    def texts() -> Iterator[str]:
        nonlocal end
        while line := file.readline(LINE_LIMIT + 1):
            if len(line) > LINE_LIMIT:
                raise csv.Error(f"longer than {LINE_LIMIT} bytes")
            end += len(line)
            yield line.decode(encoding)

    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    begun = 0
    while True:
        try:
            with field_limit():
                fields = next(reader, None)
        except UnicodeDecodeError as error:
            wrong = error.object[error.start]
            problems.add(
                f"line {number + reader.line_num + 1}", f"0x{wrong:02x} there is not {encoding}"
            )
            return
        except csv.Error as error:
            problems.add(f"line {number + begun + 1}", f"cannot be read from here: {error}")
            return
        if fields is None:
            return
        if fields:
            yield number + begun + 1, (start, end), fields
        start, begun = end, reader.line_num


def checked_names(names: list[str], path: Path) -> list[str]:
    """Return the names of the first line, without spaces around them.

    Raises:
        InputRefused: an empty name, or one that comes twice.
    """
    names = [name.strip() for name in names]
    wrong = [shown(name, 60) for name in dict.fromkeys(names) if not name or names.count(name) > 1]
    if wrong:
        raise InputRefused(
            f"{shown_path(path)}: the first line names columns by {', '.join(wrong)}: empty, or "
            "more than once. Expected a name of its own for each column."
        )
    return names


def cell(field: str, kind: str) -> Any:
    """Return the value of a CSV field in a column of some kind."""
    if kind == "text":
        return field
    if field == "":
        return None
    if kind == "integer":
        return int(field)
    return FLAGS[field] if kind == "flag" else float(field)


@contextmanager
def field_limit() -> Iterator[None]:
    """Let a CSV field be as long as a line may be; the module's own limit is 128 KiB."""
    before = csv.field_size_limit(LINE_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


class _ColumnKind:
    """The narrowest kind that fits every field of a column so far."""

    def __init__(self) -> None:
        self._fitting = ["integer", "number", "flag"]
        self._empty = True

    def add(self, field: str) -> None:
        """Drop the kinds that this field is none of."""
        if field == "" or not self._fitting:
            return
        self._empty = False
        fits = {"integer": WHOLE.fullmatch, "number": NUMBER.fullmatch, "flag": FLAGS.__contains__}
        self._fitting = [kind for kind in self._fitting if fits[kind](field)]
        if self._fitting == ["number"] and NO_AMOUNT.fullmatch(field):
            self._fitting = []

    @property
    def name(self) -> str:
        """The first kind that is left."""
        return "text" if self._empty or not self._fitting else self._fitting[0]
