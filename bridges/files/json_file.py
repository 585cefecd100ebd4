"""JSON files read strictly: what the format does not define is refused, with its place."""

from __future__ import annotations

import codecs
import json
import math
import os
import re
from typing import Any, NoReturn

import numpy as np

from bridges.files.regular_file import LFS_POINTER, open_regular, shown_path
from dew.errors import InputRefused, shown

SIZE_LIMIT = 64 << 20
DEPTH_LIMIT = 100
# Every alternative always advances (possessive, closing quote optional): linear on any text.
STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[][{}:,]|[^][{}:,"\s]++', re.DOTALL)
# A bracket as a signed byte: 1 opens, -1 closes.
STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
UTF16_OR_32 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


def read_json(path: str | os.PathLike[str], *, size_limit: int = SIZE_LIMIT) -> dict[str, Any]:
    """Read one JSON object from a file.

    Args:
        path: a regular file in UTF-8 (a leading byte order mark is skipped).
        size_limit: the most bytes that are read.

    Returns:
        The object, in the file's own order.

    Raises:
        InputRefused: no regular file, too large, not UTF-8, not JSON, a NaN or an infinity, a key
            twice in one object, nested too deeply, or something other than an object at the top.
            The message gives file, line and column.
    """
    with open_regular(path) as file:
        data = file.read(size_limit + 1)
    if len(data) > size_limit:
        raise InputRefused(
            f"{shown_path(path)}: larger than {size_limit} bytes, the most that is read of such "
            "a file. Expected a small JSON file; check that this is the right one."
        )
    value = parse_json(data, shown_path(path))
    if not isinstance(value, dict):
        raise InputRefused(
            f"{shown_path(path)}:1:1: found {_kind(value)} at the top. Expected a JSON object "
            '({"key": value, ...}).'
        )
    return value


def parse_json(data: bytes, where: str) -> Any:
    """Parse JSON text by the strict rules of `read_json`, any value at the top.

    Args:
        data: UTF-8 bytes.
        where: what the messages call the text, such as its file.

    Returns:
        The value.

    Raises:
        InputRefused: as `read_json` says.
    """
    text = _decoded(data, where)
    if text.count("[") + text.count("{") > DEPTH_LIMIT and _depth(text) > DEPTH_LIMIT:
        _refuse_depth(text, where)
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        what = f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        _refuse(text, error.pos, where, what, "A cut-off or hand-edited file? Get it again.")
    except _Repeated as error:
        what = f"the key {shown(error.args[0])} stands twice in one object"
        _refuse(text, _repeated_at(text), where, what, "Expected each key once; remove one.")
    except _NotFinite as error:
        literal = error.args[0]
        what = f"the number {shown(literal)} is not finite, and JSON has no such number"
        _refuse(text, _token_at(text, literal), where, what, "Write a finite number.")
    except (ValueError, RecursionError) as error:
        # Integers of thousands of digits: the interpreter itself will not convert them.
        _refuse(text, 0, where, f"cannot be read: {shown(str(error))}", "Check the file.")


class _Repeated(Exception):
    """A key twice in one object."""


class _NotFinite(Exception):
    """A number literal that has no finite float."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict, or refuse the first key that comes twice."""
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Repeated(key)
            seen.add(key)
    return value


def _constant(literal: str) -> NoReturn:
    """Refuse NaN, Infinity and -Infinity, which Python's reader would take."""
    raise _NotFinite(literal)


def _finite(literal: str) -> float:
    """Return the float of a literal; 1e999 would become infinity in silence."""
    value = float(literal)
    if not math.isfinite(value):
        raise _NotFinite(literal)
    return value


def _decoded(data: bytes, where: str) -> str:
    """Return the text of `data`, or say what it holds instead of UTF-8."""
    if not data.strip():
        raise InputRefused(f"{where}: an empty file. Expected JSON; download it again.")
    if data.startswith(LFS_POINTER):
        raise InputRefused(
            f"{where}: a Git LFS pointer, not the file itself. Run `git lfs pull` in its folder."
        )
    if data.startswith(UTF16_OR_32):
        raise InputRefused(
            f"{where}:1:1: not UTF-8: the byte order mark looks like UTF-16 or UTF-32. "
            "Expected UTF-8; save the file again in that encoding."
        )
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise InputRefused(
            f"{where}:{line}:{column}: not UTF-8: byte 0x{data[error.start]:02x}. "
            "Expected UTF-8; save the file again in that encoding."
        ) from None


def _depth(text: str) -> int:
    """Return how deep the brackets outside of strings nest; a header has 200,000 of them."""
    bare = STRING.sub("", text).encode("ascii", "replace").translate(STEPS, NO_BRACKETS)
    return int(np.cumsum(np.frombuffer(bare, np.int8), dtype=np.int64).max(initial=0))


def _refuse_depth(text: str, where: str) -> None:
    """Refuse text whose brackets nest deeper than the limit."""
    depth = 0
    for match in TOKEN.finditer(text):
        if text[match.start()] in "[{":
            depth += 1
            if depth > DEPTH_LIMIT:
                what = f"brackets nested deeper than {DEPTH_LIMIT}, the nesting limit"
                _refuse(text, match.start(), where, what, "Expected a flat JSON file.")
        elif text[match.start()] in "]}":
            depth -= 1


def _repeated_at(text: str) -> int:
    """Return where the first key stands that its object already has, or 0."""
    open_objects: list[set[str] | None] = []
    previous = None
    for match in TOKEN.finditer(text):
        token = match.group()
        if token in "[{":
            open_objects.append(set() if token == "{" else None)
        elif token in "]}":
            open_objects.pop()
        elif token == ":" and previous is not None and open_objects:
            keys, key = open_objects[-1], json.loads(previous.group())
            if keys is not None and key in keys:
                return previous.start()
            if keys is not None:
                keys.add(key)
        previous = match
    return 0


def _token_at(text: str, literal: str) -> int:
    """Return where `literal` stands outside of strings, or 0."""
    found = (match.start() for match in TOKEN.finditer(text) if match.group() == literal)
    return next(found, 0)


def _refuse(text: str, position: int, where: str, what: str, do: str) -> NoReturn:
    """Raise the refusal with the line and column of `position`."""
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    raise InputRefused(f"{where}:{line}:{column}: {what}. {do}") from None


def _kind(value: Any) -> str:
    """Return JSON's name for the type of `value`."""
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
