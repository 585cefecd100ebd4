"""Reading a `config.json`: typed values, a memory of what was read, and refusals that name both."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from dew.errors import InputRefused, nearest, shown

LARGEST = 2**40
_REQUIRED: Any = object()


class Keys:
    """The keys of one config, read by type; it remembers which were read.

    A key whose value is null reads as if it were absent, as Hugging Face writes it.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "config.json", prefix: str = ""):
        self.values = values
        self.where = where
        self._prefix = prefix
        self._read: set[str] = set()
        self._sections: list[Keys] = []

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

    def section(self, key: str) -> Keys:
        """Return the keys of the object under `key`; empty when absent."""
        value = self._value(key, None)
        if value is not None and type(value) is not dict:
            self._refuse_type(key, value, "an object")
        section = Keys(value or {}, self.where, f"{self._prefix}{key}.")
        self._sections.append(section)
        return section

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse the key's value unless it is absent or one of `allowed`, which ask for nothing."""
        value = self._value(key, None)
        if value is not None and not any(
            value == ok and (type(value) is bool) == (type(ok) is bool) for ok in allowed
        ):
            wanted = " or ".join(shown(ok) for ok in allowed)
            self.refuse(key, f"dew computes only {wanted}; use a checkpoint without it")

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise `InputRefused` about the value of `key`."""
        value = shown(self.values.get(key))
        raise InputRefused(f"{self.where}: {self._prefix}{key} is {value}: {why}")

    def unread(self, harmless: Collection[str] = ()) -> list[str]:
        """Return the keys, those of sections too, that nobody read and `harmless` does not list.

        A key that is null asks for nothing and counts as absent.
        """
        left = [
            f"{self._prefix}{key}"
            for key in self.values
            if key in self and key not in self._read and key not in harmless
        ]
        return left + [key for section in self._sections for key in section.unread(harmless)]

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

    def _refuse_type(self, key: str, value: Any, wanted: str) -> NoReturn:
        self.refuse(key, f"expected {wanted}, found {type(value).__name__}")


def read_activation(keys: Keys, key: str, default: str) -> str:
    """Return the activation's name, checked against those that dew computes."""
    from dew.nn.activations import ACTIVATIONS

    name = keys.text(key, default)
    if name not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        keys.refuse(key, f"unknown activation{nearest(name, ACTIVATIONS) or '.'} Known: {known}")
    return name
