"""The further arguments of optimizers and schedules: one table says what each may be given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dew.errors import InputRefused, UnknownName, nearest, shown


@dataclass(frozen=True)
class Argument:
    """One argument by its name in transformers or torch.

    Args:
        kind: "number", "integer", "switch", "text" or "numbers".
        default: its value when nothing is given; None may be given too where it is None.
        choices: the only texts allowed.
        low: the smallest number allowed, if any.
        high: the largest number allowed, if any.
        count: how many numbers "numbers" holds.
        required: whether it must be given.
    """

    kind: str
    default: Any = None
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    count: int = 0
    required: bool = False


def checked(
    owner: str, given: Mapping[str, Any] | None, known: Mapping[str, Argument]
) -> dict[str, Any]:
    """Return every argument's value: the given one, or the default.

    Args:
        owner: whose arguments they are, for the error.
        given: by name.
        known: what there is.

    Raises:
        UnknownName: a name that `known` lacks.
        InputRefused: a value of another kind or out of range, or a required one is missing.
    """
    given = given or {}
    for name in given:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes no argument"
            raise UnknownName(f"{owner}: unknown {shown(name)}; {takes}{nearest(name, known)}")
    for name, argument in known.items():
        if argument.required and given.get(name) is None:
            raise InputRefused(f"{owner}: {name} is missing; give {_expected(argument)}")
    return {
        name: _value(f"{owner}: {name}", argument, given[name])
        if name in given
        else argument.default
        for name, argument in known.items()
    }


def _value(what: str, argument: Argument, value: Any) -> Any:
    if value is None and argument.default is None:
        return None
    read = {
        "number": _number,
        "integer": _integer,
        "switch": lambda v: v if isinstance(v, bool) else None,
        "text": lambda v: v if v in argument.choices else None,
        "numbers": lambda v: _numbers(v, argument.count),
    }[argument.kind](value)
    bounded = read if isinstance(read, tuple) else (read,)
    if read is None or (argument.kind != "text" and not all(_within(argument, v) for v in bounded)):
        raise InputRefused(f"{what} is {shown(value)}; expected {_expected(argument)}")
    return read


def _within(argument: Argument, value: float) -> bool:
    low, high = argument.low, argument.high
    return (low is None or value >= low) and (high is None or value <= high)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _integer(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None


def _numbers(value: Any, count: int) -> tuple[float, ...] | None:
    if not isinstance(value, list | tuple) or len(value) != count:
        return None
    numbers = tuple(number for number in map(_number, value) if number is not None)
    return numbers if len(numbers) == count else None


def _expected(argument: Argument) -> str:
    if argument.choices:
        return f"one of {', '.join(argument.choices)}"
    noun = {
        "number": "a number",
        "integer": "a whole number",
        "switch": "true or false",
        "numbers": f"a list of {argument.count} numbers",
    }[argument.kind]
    if argument.low is not None and argument.high is not None:
        return f"{noun} from {argument.low:g} to {argument.high:g}"
    return f"{noun}, at least {argument.low:g}" if argument.low is not None else noun
