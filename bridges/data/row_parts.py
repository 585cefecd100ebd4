"""Sources read row after row: each part can go on from where any of its rows begins."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from bridges.data.arrow_tables import Features, batches_of, kinds_of, rows_of
from bridges.data.data_files import data_files
from bridges.data.json_rows import lines, starts_array
from bridges.data.line_tables import (
    DELIMITERS,
    EXPECTED_CSV,
    EXPECTED_JSON,
    checked_names,
    csv_rows,
    json_table,
    object_table,
)
from bridges.data.media_folders import media_table
from bridges.data.records import Records, read_records
from bridges.data.row_problems import RowProblems
from bridges.data.tables import FileState, hashed_rows
from bridges.data.tar_shards import decoded_sample, tar_samples
from bridges.data.text_sources import read_text
from bridges.files.regular_file import open_regular, shown_path
from dew.errors import InputRefused, UnknownName, shown

Row = tuple[Any, str, Mapping[str, Any]]
"""Where the row begins, as JSON can hold it; its place for messages; and its values."""

EDGE = 1 << 16
CHECKED_ROWS = 1024
HASHED_ROWS = 8


class Part(Protocol):
    """A source of rows that begins anew as often as it is asked to."""

    def digest(self) -> str:
        """Return a hash that tells this part from another, without reading all of it."""
        ...

    def rows(self, epoch: int, start: Any = None) -> Iterator[Row]:
        """Give the rows from `start` on, as a row named it; None for the first."""
        ...


@dataclass(frozen=True)
class FilePart:
    """The rows of one file, read as they are asked for.

    A field of a CSV file is text as it stands: what a whole column holds is not known beforehand.

    Args:
        state: the file, as it was when the source was opened.
        encoding: of text, CSV and JSON.
        whole: whether a `.txt` is one document, and not a row a line.
    """

    state: FileState
    encoding: str = "utf-8"
    whole: bool = True

    def digest(self) -> str:
        """Return the hash of the file's name, its size and its first and last bytes."""
        path, size = self.state.path, self.state.state[0]
        digest = hashlib.sha256(f"{path.name} {size}\n".encode())
        with open_regular(path) as file:
            digest.update(file.read(EDGE))
            file.seek(max(0, size - EDGE))
            digest.update(file.read(EDGE))
        return digest.hexdigest()

    def rows(self, epoch: int, start: Any = None) -> Iterator[Row]:
        """Give the rows; the file is looked at now and then, and must not have changed.

        Raises:
            InputRefused: a row that cannot be read, with file and line, or a file that changed.
        """
        del epoch
        place = "its start"
        self.state.check(place)
        for number, row in enumerate(self._read(start)):
            place = row[1].rsplit(": ", 1)[-1]
            if number % CHECKED_ROWS == 0:
                self.state.check(place)
            yield row
        self.state.check(f"the row after {place}")

    def _read(self, start: Any) -> Iterator[Row]:
        path = self.state.path
        suffix = path.suffix.lower()
        if suffix in DELIMITERS:
            return self._csv(start)
        if suffix in (".parquet", ".arrow"):
            return self._batches(start or 0)
        if suffix == ".tar":
            return _decoded(tar_samples(path, start or 0))
        if suffix == ".txt":
            text = read_text(path, encoding=self.encoding)
            texts = [text] if self.whole else text.removesuffix("\n").split("\n")
            rows = enumerate(texts[start or 0 :], start or 0)
            where = shown_path(path)
            return ((n, f"{where}: line {n + 1}", {"text": t}) for n, t in rows)
        return self._json(start)

    def _json(self, start: Any) -> Iterator[Row]:
        path = self.state.path
        with open_regular(path) as file:
            whole = starts_array(file, path)
            if whole or path.suffix.lower() == ".json":
                table = (
                    json_table(path, encoding=self.encoding)
                    if whole
                    else object_table(file, path, self.encoding)
                )
                if table is not None:
                    yield from RecordsPart(Records([table])).rows(0, start)
                    return
            byte, number = start or (file.tell(), 0)
            file.seek(byte)
            problems = RowProblems(path, EXPECTED_JSON)
            for place, span, value in lines(file, path, self.encoding, problems, number=number):
                if not isinstance(value, dict):
                    problems.add(place, f"no JSON object but {shown(value, 60)}")
                problems.refuse()
                before = int(place.removeprefix("line ")) - 1
                yield (span[0], before), f"{shown_path(path)}: {place}", value
            problems.refuse()

    def _csv(self, start: Any) -> Iterator[Row]:
        path, delimiter = self.state.path, DELIMITERS[self.state.path.suffix.lower()]
        problems = RowProblems(path, EXPECTED_CSV)
        with open_regular(path) as file:
            rows = csv_rows(file, path, self.encoding, delimiter, problems)
            first = next(rows, None)
            problems.refuse()
            names = checked_names([] if first is None else first[2], path)
            if start is not None:
                file.seek(start[0])
                rows = csv_rows(file, path, self.encoding, delimiter, problems, number=start[1])
            for number, span, fields in rows:
                if len(fields) != len(names):
                    problems.add(f"line {number}", f"{len(fields)} fields, not {len(names)}")
                problems.refuse()
                values = dict(zip(names, fields, strict=True))
                yield (span[0], number - 1), f"{shown_path(path)}: line {number}", values
            problems.refuse()

    def _batches(self, start: int) -> Iterator[Row]:
        path, number = self.state.path, 0
        kinds: dict[str, str] | None = None
        for batch in batches_of(path):
            if kinds is None:
                kinds = kinds_of(batch.schema, Features.of_schema(batch.schema), batch)
            if number + len(batch) > start:
                batch = batch.slice(max(0, start - number))
                number = max(number, start)
                for row in rows_of(batch, kinds, path.parent, shown_path(path)):
                    yield number, f"{shown_path(path)}: row {number + 1}", row
                    number += 1
            else:
                number += len(batch)


@dataclass(frozen=True)
class RecordsPart:
    """Rows that can be looked up, read in their order.

    Args:
        records: the rows.
        files: the files that they are, one a row, which are told from others by name and size;
            None where the rows themselves are hashed.
    """

    records: Records
    files: Sequence[Path] | None = None

    def digest(self) -> str:
        """Return the hash of the rows' contents, or of their files' names and sizes."""
        if self.files is None:
            return self.records.fingerprint
        known = [f"{path.parent.name}/{path.name} {path.stat().st_size}" for path in self.files]
        return hashlib.sha256("\n".join(known).encode()).hexdigest()

    def rows(self, epoch: int, start: Any = None) -> Iterator[Row]:
        """Give the rows, some at a time."""
        del epoch
        for first in range(start or 0, len(self.records), CHECKED_ROWS):
            numbers = range(first, min(first + CHECKED_ROWS, len(self.records)))
            for number, row in zip(numbers, self.records.take(numbers), strict=True):
                yield number, self.records.place(number), row


@dataclass(frozen=True)
class IterablePart:
    """Rows of what can only be gone through, such as a `datasets.IterableDataset`.

    Resuming goes through the rows before: what the iteration keeps in memory is not asked for.

    Args:
        iterable: what gives rows, the same ones each time; or a function that returns that.
    """

    iterable: Iterable[Any] | Callable[[], Iterable[Any]]

    def digest(self) -> str:
        """Return the hash of the first rows."""
        return hashed_rows(row for _, _, row in islice(self.rows(0), HASHED_ROWS))

    def rows(self, epoch: int, start: Any = None) -> Iterator[Row]:
        """Give the rows, after skipping those before `start`.

        Raises:
            InputRefused: a row that is neither a dictionary nor a text.
        """
        iterable: Any = self.iterable
        if not hasattr(iterable, "__iter__"):
            iterable = iterable()
        if hasattr(iterable, "set_epoch"):
            iterable.set_epoch(epoch)
        for number, row in enumerate(islice(iter(iterable), start or 0, None), start or 0):
            place = f"the data: row {number + 1}"
            row = {"text": row} if isinstance(row, str) else row
            if not isinstance(row, Mapping):
                raise InputRefused(
                    f"{place} is a {type(row).__name__}. Expected a dictionary, the value of each "
                    "column by its name."
                )
            yield number, place, row


@dataclass(frozen=True)
class Parts:
    """The parts of one split of a source.

    Args:
        parts: in the order of their names.
        files: how many files are behind them.
        ignored: names in a folder that are not read.
    """

    parts: Sequence[Part]
    files: int = 0
    ignored: tuple[str, ...] = ()


def source_parts(
    source: Any, *, split: str = "train", encoding: str = "utf-8", lines: bool = False
) -> Parts:
    """Return the parts of any source; none of its rows is read.

    Args:
        source: what `bridges.data.records.read_records` takes, and also tar shards, an iterable
            dataset, any object that can be iterated again and again, or a function that returns an
            iterator.
        split: which split of it.
        encoding: of text, CSV and JSON files.
        lines: whether a `.txt` holds a row a line, and is not one document.

    Raises:
        InputRefused: nothing there, or an iterator, which cannot begin anew. UnknownName: no such
            split.
    """
    if isinstance(source, str | os.PathLike):
        files = data_files(source, split=split, lines=True)
        if files.media:
            table = media_table(files.folder, files.media, encoding=encoding)
            paths = [table.folder / name for name in table.names]
            return Parts([RecordsPart(Records([table]), paths)], len(table), files.ignored)
        parts = [FilePart(FileState.of(path), encoding, not lines) for path in files.paths]
        return Parts(parts, len(parts), files.ignored)
    if isinstance(source, Mapping) and split in source and _iterates_only(source[split]):
        return source_parts(source[split])
    if _iterates_only(source):
        if split != "train":
            raise UnknownName(f"split: found {shown(split)}, but this data has one split, 'train'.")
        return Parts([IterablePart(source)])
    if isinstance(source, Sequence) and source and isinstance(source[0], str | os.PathLike):
        found = [source_parts(s, split=split, encoding=encoding, lines=lines) for s in source]
        return Parts(
            [part for each in found for part in each.parts],
            sum(each.files for each in found),
            sum((each.ignored for each in found), ()),
        )
    records = read_records(source, split=split, encoding=encoding, lines=lines)
    return Parts([RecordsPart(records)], len(records.files), records.ignored)


def _iterates_only(source: Any) -> bool:
    """Say whether a source has no rows to look up but can be gone through.

    Raises:
        InputRefused: it can be gone through only once.
    """
    if isinstance(source, Iterator):
        raise InputRefused(
            f"the data is an iterator ({type(source).__name__}), which can be gone through once; "
            "an epoch and a resumed run begin anew. Expected a function that returns it, or an "
            "iterable dataset."
        )
    if isinstance(source, Records | Mapping | Sequence):
        return False
    if callable(source) and not hasattr(source, "__iter__"):
        return True
    return hasattr(source, "__iter__") and not hasattr(source, "__len__")


def _decoded(samples: Iterator[tuple[int, str, dict[str, Any]]]) -> Iterator[Row]:
    for start, place, sample in samples:
        yield start, place, decoded_sample(sample, place)
