"""Tables of raw rows: what each source is read as, and the one that is held in memory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bridges.files.regular_file import shown_path
from dew.errors import InputRefused

KINDS = ("text", "integer", "number", "flag", "list", "object", "image", "audio", "null")
HASHED_ROWS = 1024


class Table(Protocol):
    """Rows of one file or of one value in memory."""

    @property
    def columns(self) -> Mapping[str, str]:
        """The kind of each column, one of `KINDS`."""
        ...

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def take(self, indices: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows at `indices`, each with those columns."""
        ...

    def place(self, index: int) -> str:
        """Return where a row stands, for a message: `a.csv: line 4`."""
        ...

    def labels(self, name: str) -> tuple[str, ...] | None:
        """Return the names of a column's classes, or None where the source names none."""
        ...

    def digest(self) -> str:
        """Return a hash of the contents."""
        ...


@dataclass(frozen=True)
class ListTable:
    """Rows held in memory.

    Args:
        rows: one dictionary a row; a column that one lacks is None there.
        columns: the kind of each column.
        where: what the rows come from, for messages.
        places: where each row stands within that; None counts them from 1.
        names: the names of the classes, by column.
    """

    rows: Sequence[Mapping[str, Any]]
    columns: Mapping[str, str]
    where: str
    places: Sequence[str] | None = None
    names: Mapping[str, tuple[str, ...]] | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def take(self, indices: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows at `indices`, each with those columns."""
        return [{name: self.rows[n].get(name) for name in columns} for n in indices]

    def place(self, index: int) -> str:
        """Return where a row stands."""
        place = f"row {index + 1}" if self.places is None else self.places[index]
        return f"{self.where}: {place}"

    def labels(self, name: str) -> tuple[str, ...] | None:
        """Return the names of a column's classes, if there are any."""
        return (self.names or {}).get(name)

    def digest(self) -> str:
        """Return the hash of the rows' values."""
        return hashed_rows(self.rows)


@dataclass(frozen=True)
class FileState:
    """What changes when a file is written, cut or replaced.

    Args:
        path: the file.
        state: its size in bytes, time of change and number in its file system.
    """

    path: Path
    state: tuple[int, int, int]

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Return the state of a file that is there."""
        found = os.stat(path)
        return cls(path, (found.st_size, found.st_mtime_ns, found.st_ino))

    def check(self, place: str) -> None:
        """Refuse to read on in a file that changed.

        Raises:
            InputRefused: it changed or is gone; the message gives `place`.
        """
        try:
            changed = FileState.of(self.path) != self
        except OSError as error:
            raise InputRefused(
                f"{shown_path(self.path)}: gone at {place} ({error.strerror}). Put the same file "
                "back and resume."
            ) from None
        if changed:
            raise InputRefused(
                f"{shown_path(self.path)}: changed while it was read, at {place}. Put the file as "
                "it was back and resume, or start anew."
            )


def kind_of(value: Any) -> str:
    """Return the kind of one value."""
    if value is None:
        return "null"
    if isinstance(value, bool | np.bool_):
        return "flag"
    if isinstance(value, int | np.integer):
        return "integer"
    if isinstance(value, float | np.floating):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list | tuple | np.ndarray):
        return "list"
    if type(value).__module__.startswith("PIL."):
        return "image"
    return "object"


def joined_kind(first: str, second: str) -> str | None:
    """Return the kind that holds values of both, or None if they do not go together."""
    if first == second or second == "null":
        return first
    if first == "null":
        return second
    return "number" if {first, second} == {"integer", "number"} else None


def add_kinds(kinds: dict[str, str], row: Mapping[str, Any]) -> None:
    """Widen the kinds of a table's columns to hold a further row; what is mixed is an object."""
    for name, value in row.items():
        kind = kind_of(value)
        known = kinds.get(name, "null")
        kinds[name] = joined_kind(known, kind) or "object"


def list_table(rows: Iterable[Mapping[str, Any]], where: str) -> ListTable:
    """Return a table of dictionaries.

    Raises:
        InputRefused: a row that is none.
    """
    kinds: dict[str, str] = {}
    kept = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise InputRefused(
                f"{where}: row {number} is a {type(row).__name__}. Expected a dictionary, the "
                "value of each column by its name."
            )
        add_kinds(kinds, row)
        kept.append(row)
    return ListTable(kept, kinds, where)


def column_table(columns: Mapping[str, Any], where: str) -> ListTable:
    """Return a table of columns, each a list or an array with an entry a row.

    Raises:
        InputRefused: columns of different lengths.
    """
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputRefused(f"{where}: columns of different lengths: {found}. Expected one length.")
    values = [
        v.tolist() if isinstance(v, np.ndarray) and v.ndim == 1 else v for v in columns.values()
    ]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
    return list_table(rows, where)


def hashed_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the SHA-256 of rows' names and values, in hexadecimal."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=_plain).encode("utf-8", "replace"))
        digest.update(b"\n")
    return digest.hexdigest()


def hashed_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: Any) -> Any:
    """Return what JSON has not in a form that stands for its contents."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Path):
        return {"file": hashed_file(value)} if value.is_file() else {"path": str(value)}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if hasattr(value, "tobytes"):
        return {"bytes": hashlib.sha256(value.tobytes()).hexdigest()}
    return repr(value)
