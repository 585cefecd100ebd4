"""Reading a `config.json`: typed values, a memory of what was read, and refusals that name both."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, TypeVar

from dew.errors import InputRefused, listed, nearest, shown

LARGEST = 2**40
_REQUIRED: Any = object()
_T = TypeVar("_T")


class ValueRefused(InputRefused):
    """One value of a config, refused for itself and whatever the others are.

    Args:
        where: the file.
        path: the keys that lead to the value, outermost first.
        problem: the rest of the message.
    """

    def __init__(self, where: str, path: tuple[str, ...], problem: str):
        super().__init__(f"{where}: {problem}")
        self.path, self.problem = path, problem


class Keys:
    """The keys of one config, read by type; it remembers which were read.

    A key whose value is null reads as if it were absent, as Hugging Face writes it.
    """

    def __init__(
        self, values: Mapping[str, Any], where: str = "config.json", path: tuple[str, ...] = ()
    ):
        self.values = values
        self.where = where
        self._path = path
        self._prefix = "".join(f"{key}." for key in path)
        self._read: set[str] = set()
        self._sections: dict[str, Keys] = {}

    def __contains__(self, key: str) -> bool:
        """Say whether the key is there with a value other than null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: Any = _REQUIRED, *, low: int = 1) -> Any:
        """Return a whole number of at least `low`."""
        value = self._value(key, default)
        if value is default:
            return default
        if type(value) is not int:
            self._refuse_type(key, value, "a whole number")
        if not low <= value <= LARGEST:
            self.refuse(key, f"expected a whole number from {low} to {LARGEST}")
        return value

    def number(self, key: str, default: Any = _REQUIRED, *, low: float = -math.inf) -> Any:
        """Return a finite number of at least `low` as a float."""
        value = self._value(key, default)
        if value is default:
            return default
        if type(value) not in (int, float):
            self._refuse_type(key, value, "a number")
        if not math.isfinite(value) or value < low or abs(value) > 1e300:
            self.refuse(key, f"expected a finite number of at least {low}")
        return float(value)

    def flag(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return true or false."""
        value = self._value(key, default)
        if value is not default and type(value) is not bool:
            self._refuse_type(key, value, "true or false")
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return a string."""
        value = self._value(key, default)
        if value is not default and type(value) is not str:
            self._refuse_type(key, value, "a string")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of finite numbers; empty when absent."""
        value = self._value(key, None)
        if value is None:
            return ()
        if type(value) is not list or any(type(item) not in (int, float) for item in value):
            self._refuse_type(key, value, "a list of numbers")
        return tuple(float(item) for item in value)

    def words(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; empty when absent."""
        value = self._value(key, None)
        if value is None:
            return ()
        if type(value) is not list or any(type(item) is not str for item in value):
            self._refuse_type(key, value, "a list of strings")
        return tuple(value)

    def section(self, key: str) -> Keys:
        """Return the keys of the object under `key`, the same each time; empty when absent."""
        if key in self._sections:
            return self._sections[key]
        value = self._value(key, None)
        if value is not None and type(value) is not dict:
            self._refuse_type(key, value, "an object")
        self._sections[key] = Keys(value or {}, self.where, (*self._path, key))
        return self._sections[key]

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse the key's value unless it is absent or one of `allowed`, which ask for nothing."""
        value = self._value(key, None)
        if value is not None and not any(
            value == ok and (type(value) is bool) == (type(ok) is bool) for ok in allowed
        ):
            wanted = " or ".join(shown(ok) for ok in allowed)
            self.refuse(key, f"dew computes only {wanted}; use a checkpoint without it")

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise `ValueRefused` about the value of `key`, which no other value could mend."""
        raise ValueRefused(self.where, (*self._path, key), self._problem(key, why))

    def clash(self, key: str, why: str) -> NoReturn:
        """Raise `InputRefused` about the value of `key`, which does not fit another one."""
        raise InputRefused(f"{self.where}: {self._problem(key, why)}")

    def unread(self, harmless: Collection[str] = ()) -> list[str]:
        """Return the keys, those of sections too, that nobody read and `harmless` does not list.

        A key that is null asks for nothing and counts as absent.
        """
        left = [
            f"{self._prefix}{key}"
            for key in self.values
            if key in self and key not in self._read and key not in harmless
        ]
        return left + [
            key for section in self._sections.values() for key in section.unread(harmless)
        ]

    def _value(self, key: str, default: Any) -> Any:
        self._read.add(key)
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise InputRefused(
                f"{self.where}: {self._prefix}{key} is absent and has no default"
                f"{nearest(key, self.values)}"
            )
        return default

    def _problem(self, key: str, why: str) -> str:
        return f"{self._prefix}{key} is {shown(self.values.get(key))}: {why}"

    def _refuse_type(self, key: str, value: Any, wanted: str) -> NoReturn:
        self.refuse(key, f"expected {wanted}, found {type(value).__name__}")


def read_all(values: Mapping[str, Any], where: str, read: Callable[[Keys], _T]) -> tuple[_T, Keys]:
    """Return what `read` makes of a config, and its keys; every wrong value is in one refusal.

    A value that was refused counts as absent while the rest is read.

    Args:
        values: the config.
        where: the file, for messages.
        read: reads the keys it wants.

    Raises:
        InputRefused: what `read` raised, or one error that lists all values it refused.
    """
    problems: list[ValueRefused] = []
    while True:
        keys = Keys(values, where)
        try:
            found = read(keys)
        except ValueRefused as refused:
            problems.append(refused)
            values = _without(values, refused.path)
            continue
        except InputRefused as error:
            # Beside a wrong value, one that does not fit it says nothing.
            raise _together(where, problems) if problems else error from None
        if problems:
            raise _together(where, problems)
        return found, keys


def _together(where: str, problems: list[ValueRefused]) -> InputRefused:
    """Return one refusal of all of them."""
    if len(problems) == 1:
        return problems[0]
    heading = f"{where}: {len(problems)} values that dew cannot follow:"
    return InputRefused(listed(heading, [refused.problem for refused in problems]))


def _without(values: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    key, *rest = path
    if rest:
        return {**values, key: _without(values[key], tuple(rest))}
    return {name: value for name, value in values.items() if name != key}


def read_activation(keys: Keys, key: str, default: str) -> str:
    """Return the activation's name, checked against those that dew computes."""
    from dew.nn.activations import ACTIVATIONS

    name = keys.text(key, default)
    if name not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        keys.refuse(key, f"unknown activation{nearest(name, ACTIVATIONS) or '.'} Known: {known}")
    return name
