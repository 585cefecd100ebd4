"""Where documents come from: text, JSON lines and parquet files, alone or in a folder."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bridges.data.json_rows import json_texts
from bridges.data.parquet_rows import parquet_texts
from bridges.data.row_problems import refuse_pointer
from bridges.files.regular_file import contained, open_regular, shown_path
from dew.errors import InputRefused, UnknownName, nearest, shown

SUFFIXES = (".txt", ".jsonl", ".json", ".parquet")
ENCODINGS = ("utf-8", "latin-1", "cp1252")
# What the `datasets` library and the hub put beside the data, never rows themselves.
DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
TRAINING = {"train", "training"}
OTHERS = {"test", "validation", "valid", "val", "dev", "eval"}
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class TextFiles:
    """The files of a source.

    Args:
        paths: what is read, in this order.
        ignored: what else a folder holds, by its name in that folder, and is not read.
    """

    paths: tuple[Path, ...]
    ignored: tuple[str, ...] = ()


def find_files(source: Source) -> TextFiles:
    """Return the files of a source, sorted by name within a folder; opens none.

    Of a folder every `.txt`, `.jsonl`, `.json` and `.parquet` file counts, those of its folders
    too, but not hidden ones. Where some are named after a training split, those named after
    another split (`test-00000.parquet`, `validation/a.jsonl`) are left out. A script is never
    run nor read.

    Args:
        source: a file, a folder, or several of them.

    Raises:
        InputRefused: nothing there, a file of another kind, or a folder without any such file.
    """
    if not isinstance(source, str | os.PathLike):
        found = [find_files(part) for part in source]
        if not found:
            raise InputRefused(f"data: no path given; expected {_expected()}.")
        return TextFiles(sum((f.paths for f in found), ()), sum((f.ignored for f in found), ()))
    path = Path(source)
    if path.is_dir():
        return _of_folder(path)
    if path.suffix.lower() not in SUFFIXES and path.exists():
        raise InputRefused(
            f"{shown_path(path)}: data of the kind {shown(path.suffix)}; expected {_expected()}."
        )
    if not path.exists() and not path.is_symlink():
        raise InputRefused(
            f"{shown_path(path)}: no such file or folder. Expected {_expected()}; check the path."
        )
    return TextFiles((path,))


def read_texts(
    files: TextFiles, *, text_field: str = "text", encoding: str = "utf-8"
) -> Iterator[str]:
    """Give the documents of files one by one, holding one file part in memory at a time.

    A text file is one document, its line ends as they are. A row of JSON lines or parquet is one
    document, the text in `text_field`.

    Args:
        files: what to read, in its order.
        text_field: the field of a row that holds the text.
        encoding: of text and JSON files: utf-8 (a leading byte order mark is skipped), latin-1
            or cp1252. Nothing is guessed.

    Raises:
        InputRefused: a file that cannot be decoded or parsed, or a row without such a text; the
            message gives file and byte, line or row. UnknownName: another encoding.
    """
    if encoding not in ENCODINGS:
        raise UnknownName(
            f"encoding: found {shown(encoding)}, expected one of {', '.join(ENCODINGS)}"
            f"{nearest(encoding, ENCODINGS)}"
        )
    for path in files.paths:
        suffix = path.suffix.lower()
        if suffix == ".txt":
            yield read_text(path, encoding=encoding)
        elif suffix == ".parquet":
            yield from parquet_texts(path, text_field=text_field)
        else:
            yield from json_texts(path, text_field=text_field, encoding=encoding)


def read_text(path: Path, *, encoding: str = "utf-8") -> str:
    """Return the whole text of a file.

    Raises:
        InputRefused: no regular file, or bytes that are not of the encoding, with the first one.
    """
    with open_regular(path) as file:
        data = file.read()
    refuse_pointer(data, path)
    return decoded(data, encoding=encoding, where=shown_path(path))


def decoded(data: bytes, *, encoding: str, where: str) -> str:
    """Return `data` as text, without a UTF-8 byte order mark.

    Raises:
        InputRefused: a byte that is not of the encoding, naming `where` and the byte.
    """
    if encoding == "utf-8":
        data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        start = error.start
        advice = f"Save the file as {encoding}, or name its own encoding ({', '.join(ENCODINGS)})."
        if data.startswith(UTF16):
            advice = "It begins like UTF-16; save it as UTF-8."
        raise InputRefused(
            f"{where}: byte {start} is 0x{data[start]:02x}, which is not {encoding} there. {advice}"
        ) from None


def _of_folder(folder: Path) -> TextFiles:
    """Return the data files below a folder and the names of the rest."""
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if not path.is_dir()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    rows = [
        name
        for name in names
        if Path(name).suffix.lower() in SUFFIXES and Path(name).name not in DESCRIPTIONS
    ]
    if any(_words(name) & TRAINING for name in rows):
        rows = [name for name in rows if _words(name) & TRAINING or not _words(name) & OTHERS]
    if not rows:
        raise InputRefused(
            f"{shown_path(folder)}: a folder without data. Expected {_expected()} in it; "
            f"found {', '.join(shown(name, 60) for name in names[:5]) or 'no file'}."
        )
    kept = set(rows)
    paths = tuple(contained((folder / name).parent, Path(name).name) for name in rows)
    return TextFiles(paths, tuple(name for name in names if name not in kept))


def _words(name: str) -> set[str]:
    """Return the words of a path, as `data/train-00000.parquet` holds `data` and `train`."""
    return set(re.split(r"[-_./]", name.lower()))


def _expected() -> str:
    return f"a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, or a folder of them"
