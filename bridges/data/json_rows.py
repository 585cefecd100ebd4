"""Texts from JSON files: one object a line, or one array of objects."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bridges.data.row_problems import RowProblems, absent_field, refuse_pointer, text_problem
from bridges.files.regular_file import open_regular, shown_path
from dew.errors import InputRefused, shown

LINE_LIMIT = 256 << 20
ARRAY_LIMIT = 1 << 30
EXPECTED = "Expected a JSON object with a text field in each; repair or remove these:"


def json_texts(path: Path, *, text_field: str, encoding: str = "utf-8") -> Iterator[str]:
    """Give the text of each row, in order; blank lines are no rows.

    Args:
        path: JSON lines, or a file whose first character is `[`: an array of objects.
        text_field: the field that holds the text. A NUL in it is data like any other.
        encoding: of the file, one whose line ends are the byte 10.

    Raises:
        InputRefused: rows that are not JSON objects, lack the field or hold no text there: all of
            them up to ten, by line (by row in an array). Also an overlong line.
    """
    problems = RowProblems(path, EXPECTED)
    with open_regular(path) as file:
        is_array = starts_array(file, path)
        rows = _array(file, path, encoding) if is_array else lines(file, path, encoding, problems)
        for place, _, row in rows:
            problem = _problem(row, text_field)
            if problem is None:
                yield row[text_field]
            else:
                problems.add(place, problem)
    problems.refuse()


def starts_array(file: BinaryIO, path: Path) -> bool:
    """Say whether a JSON file's first character is `[`; leave it there, past a byte order mark.

    Raises:
        InputRefused: a Git LFS pointer.
    """
    head = file.read(64)
    refuse_pointer(head, path)
    file.seek(len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0)
    return head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def lines(
    file: BinaryIO, path: Path, encoding: str, problems: RowProblems, *, number: int = 0
) -> Iterator[tuple[str, tuple[int, int], Any]]:
    """Give the value of each line that parses; the others go to `problems`.

    Args:
        file: at the first byte of a line.
        path: the file, for messages.
        encoding: of the file.
        problems: takes the lines that are not JSON, by number.
        number: how many lines stand before the first one.

    Returns:
        An iterator over the place (`line 4`), the first byte and the one after the last, and the
        value; blank lines are left out.
    """
    start = file.tell()
    # Only the byte 10 ends a line: U+2028 and its kin are data within a JSON string.
    while line := file.readline(LINE_LIMIT + 1):
        number += 1
        if len(line) > LINE_LIMIT:
            raise InputRefused(
                f"{shown_path(path)}: line {number} is longer than {LINE_LIMIT} bytes. Expected "
                "one JSON object a line."
            )
        if line.strip():
            try:
                value = json.loads(line.decode(encoding))
                yield f"line {number}", (start, start + len(line)), value
            except UnicodeDecodeError as error:
                place = f"byte {start + error.start} is 0x{line[error.start]:02x}"
                problems.add(f"line {number}", f"not {encoding}: {place}")
            except json.JSONDecodeError as error:
                what = f"{error.msg[:1].lower()}{error.msg[1:]} at column {error.colno}"
                problems.add(f"line {number}", f"not JSON: {what}: {shown(_tail(line), 60)}")
            except (ValueError, RecursionError) as error:
                problems.add(f"line {number}", f"not JSON that can be read: {shown(str(error))}")
        start += len(line)


def _array(file: BinaryIO, path: Path, encoding: str) -> Iterator[tuple[str, None, Any]]:
    """Give the elements of a file that is one array."""
    for number, row in enumerate(whole_value(file, path, encoding), 1):
        yield f"row {number}", None, row


def whole_value(file: BinaryIO, path: Path, encoding: str) -> Any:
    """Return the one value that a file holds, read whole.

    Raises:
        InputRefused: more than a gigabyte, or not JSON.
    """
    data = file.read(ARRAY_LIMIT + 1)
    advice = "Expected an array of objects, or better one object a line (.jsonl)."
    if len(data) > ARRAY_LIMIT:
        raise InputRefused(
            f"{shown_path(path)}: an array of more than {ARRAY_LIMIT} bytes. {advice}"
        )
    try:
        return json.loads(data.decode(encoding))
    except (ValueError, RecursionError) as error:
        raise InputRefused(f"{shown_path(path)}: not JSON: {shown(str(error))}. {advice}") from None


def _problem(row: Any, text_field: str) -> str | None:
    """Return why a parsed row is unusable, or None."""
    if not isinstance(row, dict):
        return f"no JSON object but {shown(row, 60)}"
    if text_field not in row:
        return absent_field(text_field, row)
    problem = text_problem(row[text_field])
    return problem and f"field {shown(text_field, 60)} {problem}"


def _tail(line: bytes) -> str:
    """Return the end of a line, where a cut-off one stops."""
    return line[-40:].decode("utf-8", "replace").rstrip("\n")
