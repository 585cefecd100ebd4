"""Folders of images or of sounds: a folder a class, or a table of metadata beside the files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridges.data.line_tables import csv_table, json_table
from bridges.data.tables import Table, hashed_file
from bridges.files.regular_file import shown_path
from dew.data.images import SUFFIXES as IMAGES
from dew.errors import InputRefused, listed, shown

SOUNDS = (".aif", ".aiff", ".flac", ".mp3", ".ogg", ".opus", ".wav")
METADATA = ("metadata.csv", "metadata.jsonl")
FILE_NAME = "file_name"
LABEL = "label"


@dataclass(frozen=True)
class MediaTable:
    """One file a row, with its class or with what a table says of it.

    Args:
        kind: `image` or `audio`, the name of the column too.
        folder: the folder that was handed over.
        names: each file's name in that folder, with `/` between parts.
        classes: the names of the classes, or None.
        rows: what else is known of each file: its label's number, or its row of metadata.
        columns: the kind of each column.
    """

    kind: str
    folder: Path
    names: Sequence[str]
    classes: tuple[str, ...] | None
    rows: Sequence[Mapping[str, Any]]
    columns: Mapping[str, str]

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.names)

    def take(self, indices: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows at `indices`: the path, not the pixels or samples."""
        whole = [{self.kind: self.folder / self.names[n], **self.rows[n]} for n in indices]
        return [{name: row.get(name) for name in columns} for row in whole]

    def place(self, index: int) -> str:
        """Return the file's path."""
        return shown_path(self.folder / self.names[index])

    def labels(self, name: str) -> tuple[str, ...] | None:
        """Return the names of the classes, which are those of the folders."""
        return self.classes if name == LABEL else None

    def digest(self) -> str:
        """Return the hash of the names, of the files' bytes and of what is said of them."""
        digest = hashlib.sha256()
        for name, row in zip(self.names, self.rows, strict=True):
            digest.update(f"{name} {hashed_file(self.folder / name)} {row}\n".encode())
        return digest.hexdigest()


def media_kind(names: Sequence[str], folder: Path) -> str | None:
    """Return whether files are images or sounds, or None if they are neither.

    Raises:
        InputRefused: they are both.
    """
    images = sum(Path(name).suffix.lower() in IMAGES for name in names)
    sounds = sum(Path(name).suffix.lower() in SOUNDS for name in names)
    if images and sounds:
        raise InputRefused(
            f"{shown_path(folder)}: {images} images and {sounds} sounds. Expected files of one "
            "kind; name a folder that holds only one."
        )
    return "image" if images else "audio" if sounds else None


def media_table(folder: Path, names: Sequence[str], *, encoding: str) -> MediaTable:
    """Return the images or sounds among the files of a folder, and what is said of them.

    With a `metadata.csv` or `metadata.jsonl` its rows say which files there are (`file_name`, as
    seen from the folder it lies in) and what belongs to them. Otherwise each file's own folder is
    its class, unless they all lie in one.

    Args:
        folder: the folder that was handed over.
        names: the files in it that are to be considered, with `/` between parts.
        encoding: of the metadata.

    Raises:
        InputRefused: images and sounds mixed, or a row of metadata without a file of that name.
    """
    kind = media_kind(names, folder)
    assert kind is not None
    suffixes = IMAGES if kind == "image" else SOUNDS
    files = sorted(name for name in names if Path(name).suffix.lower() in suffixes)
    described = sorted(name for name in names if Path(name).name in METADATA)
    if described:
        return _described(folder, kind, files, described, encoding)
    parents = [Path(name).parent.name for name in files]
    classes = tuple(sorted(set(parents)))
    if len(classes) < 2:
        return MediaTable(kind, folder, files, None, [{}] * len(files), {kind: kind})
    numbers = {name: number for number, name in enumerate(classes)}
    rows = [{LABEL: numbers[parent]} for parent in parents]
    return MediaTable(kind, folder, files, classes, rows, {kind: kind, LABEL: "integer"})


def _described(
    folder: Path, kind: str, files: Sequence[str], described: Sequence[str], encoding: str
) -> MediaTable:
    there, found = set(files), []
    rows, problems = [], []
    columns: dict[str, str] = {kind: kind}
    for name in described:
        path = folder / name
        read = csv_table if path.suffix == ".csv" else json_table
        table: Table = read(path, encoding=encoding)
        if FILE_NAME not in table.columns:
            raise InputRefused(
                f"{shown_path(path)}: no column {FILE_NAME!r}; there is "
                f"{', '.join(shown(column, 60) for column in table.columns)}. Expected each "
                "file's name in it."
            )
        others = [column for column in table.columns if column != FILE_NAME]
        columns |= {column: table.columns[column] for column in others}
        for number, row in enumerate(table.take(range(len(table)), list(table.columns))):
            beside = Path(name).parent / str(row.pop(FILE_NAME))
            if beside.as_posix() not in there:
                problems.append(f"{table.place(number)}: {shown(beside.as_posix())}")
            found.append(beside.as_posix())
            rows.append(row)
    if problems:
        heading = "names files that are not there, or no files of this kind:"
        raise InputRefused(listed(f"{shown_path(folder)}: its metadata {heading}", problems))
    return MediaTable(kind, folder, found, None, rows, columns)
