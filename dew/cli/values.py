"""Turning what was typed, or read from a file, into an option's value."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from dew.cli.command import Option, check_name
from dew.errors import InputRefused, nearest, shown

_SUFFIXED = re.compile(r"([-+]?[0-9][0-9_]*)([kKmMgG]?)")
# As vLLM reads them: small letters are decimal, capitals binary.
_SUFFIXES = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def typed_value(option: Option, text: str | list[str]) -> Any:
    """Return the value of `option` for what was typed on the command line.

    Raises:
        InputRefused: the text is no value of this option.
    """
    if option.kind == "texts":
        parts = [text] if isinstance(text, str) else text
        value: Any = tuple(part for whole in parts for part in whole.split(",") if part)
    elif option.kind == "parts":
        return file_value(option, _parts(option, text))
    elif option.kind == "pairs":
        value = (text,) if isinstance(text, str) else tuple(text)
    else:
        word = text if isinstance(text, str) else " ".join(text)
        if word.lower() in ("none", "null") and option.default is None:
            return None
        value = _READ[option.kind](option, word)
    return _checked(option, value)


def file_value(option: Option, value: Any) -> Any:
    """Return the value of `option` for what a configuration file holds.

    Text stands for a number only with a suffix (`32K`); `"1e3"` in quotes is refused.

    Raises:
        InputRefused: the value is of another kind or out of range.
    """
    if value is None:
        if option.default is None:
            return None
        raise InputRefused(f"{option.name}: nothing given; expected {_expected(option)}")
    if option.kind == "parts":
        return _checked_parts(option, value)
    if option.kind in ("texts", "pairs"):
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise InputRefused(f"{option.name} is {shown(value)}; expected a list of texts")
        return _checked(option, tuple(part.strip() for part in parts if part.strip()))
    if option.kind == "integer" and isinstance(value, str) and _SUFFIXED.fullmatch(value):
        if value[-1] in "kKmMgG":
            return _checked(option, _integer(option, value))
        raise InputRefused(f"{option.name} is the text {shown(value)}; write it without quotes")
    wanted: tuple[type, ...] = {
        "integer": (int, float),
        "number": (int, float),
        "text": (str, int, float),
        "switch": (bool,),
    }[option.kind]
    if not isinstance(value, wanted) or (isinstance(value, bool) and option.kind != "switch"):
        kind = "text " if isinstance(value, str) else ""
        raise InputRefused(f"{option.name} is {kind}{shown(value)}; expected {_expected(option)}")
    return _checked(option, _READ[option.kind](option, value))


def _parts(option: Option, text: str | list[str]) -> Any:
    from dew.cli.config_file import read_value

    return read_value(text if isinstance(text, str) else " ".join(text), option.name)


def _checked_parts(option: Option, value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(part, dict) for part in value):
        raise InputRefused(f"{option.name} is {shown(value)}; expected {_expected(option)}")
    for key in (key for part in value for key in part):
        if option.choices and key not in option.choices:
            raise InputRefused(
                f"{option.name}: the key {shown(key)} is not known; expected "
                f"{', '.join(option.choices)}{nearest(str(key), option.choices)}"
            )
    try:
        # Of its own for each part: YAML writes an object that stands twice as an anchor.
        return tuple(json.loads(json.dumps(part, allow_nan=False)) for part in value)
    except (TypeError, ValueError) as error:
        raise InputRefused(f"{option.name}: {error}; expected what JSON can hold") from None


def _integer(option: Option, value: Any) -> int:
    if isinstance(value, float):
        if not (math.isfinite(value) and value == int(value)):
            raise InputRefused(f"{option.name} is {value}; expected {_expected(option)}")
        return int(value)
    if isinstance(value, int):
        return value
    match = _SUFFIXED.fullmatch(value.strip())
    if not match or len(value) > 30:
        raise InputRefused(f"{option.name} is {shown(value)}; expected {_expected(option)}")
    return int(match[1].replace("_", "")) * _SUFFIXES[match[2]]


def _number(option: Option, value: Any) -> float:
    try:
        number = float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputRefused(f"{option.name} is {shown(value)}; expected {_expected(option)}")
    return number


def _text(option: Option, value: Any) -> str:
    text = str(value)
    if "\x00" in text:
        raise InputRefused(f"{option.name} is {shown(text)}; it holds a null character")
    return text


def _switch(option: Option, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise InputRefused(f"{option.name} is {shown(value)}; expected true or false")


_READ = {"integer": _integer, "number": _number, "text": _text, "switch": _switch}


def _checked(option: Option, value: Any) -> Any:
    """Return `value` if it lies within the option's bounds, choices and spelling."""
    words = value if option.kind in ("texts", "pairs") else (value,)
    for word in words:
        if option.choices and word not in option.choices:
            raise InputRefused(
                f"{option.name} is {shown(word)}; expected one of {', '.join(option.choices)}"
                f"{nearest(str(word), option.choices)}"
            )
        low, high = option.low, option.high
        if (low is not None and word < low) or (high is not None and word > high):
            raise InputRefused(f"{option.name} is {word}; expected {_expected(option)}")
        if option.pathless:
            check_name(word, option.name)
    return value


def _expected(option: Option) -> str:
    noun = {
        "integer": "a whole number",
        "number": "a finite number",
        "text": "a text",
        "texts": "a list of texts",
        "pairs": "a list of texts such as a.b=1",
        "parts": f"a list of mappings with {', '.join(option.choices)}",
        "switch": "true or false",
    }[option.kind]
    if option.low is not None and option.high is not None:
        return f"{noun} from {option.low:g} to {option.high:g}"
    if option.low is not None:
        return f"{noun}, at least {option.low:g}"
    return noun
