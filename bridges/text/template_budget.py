"""What one rendering of a chat template may use: time, memory and output.

A template is code from a stranger. Jinja's sandbox keeps it from Python's internals, not from
endless loops or giant texts; every step and every value that it makes is counted here instead.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from dew.errors import InputRefused

SECONDS = 1.0
OUTPUT_CHARACTERS = 1 << 20
MADE_BYTES = 128 << 20
NODE_BYTES = 64
STEPS_A_LOOK = 16
LARGE = 1 << 12
DEPTH = 64
WIDTH = 10_000
INTEGER_BITS = 1 << 12
WIDE = re.compile(r"\d{5,}|\*|\{[^{}]*\{")
WIDE_FIELD = re.compile(r"\d{3,4}")


class Budget:
    """Counts what one rendering uses and refuses more than it may."""

    def __init__(self, given: Any):
        """Start the clock.

        Args:
            given: everything the caller hands to the template; long conversations may write long
                texts.
        """
        # The caller holds these for the whole rendering, so their identity stays theirs.
        self._given: dict[int, int] = {}
        known: dict[int, int] = {}
        size = self._size(given, 0, known)
        self._given = known
        self.output_limit = OUTPUT_CHARACTERS + 2 * size
        self._left = MADE_BYTES + 16 * size
        self._steps = 0
        self._written = 0
        self._deadline = time.thread_time() + SECONDS

    def step(self) -> None:
        """Count one round of a loop, call or operation."""
        self._steps += 1
        if self._steps % STEPS_A_LOOK == 0:
            self._look()

    def write(self, text: str) -> None:
        """Count what the template puts out."""
        self._written += len(text)
        if self._written > self.output_limit:
            self._too_long(self._written)

    def length(self, characters: int) -> None:
        """Refuse a text that would be longer than the output may be, before it is made."""
        if characters > self.output_limit:
            self._too_long(characters)

    def made(self, value: Any) -> Any:
        """Count a value that the template has made, and return it."""
        self.step()
        if isinstance(value, str):
            self.length(len(value))
            self._spend(value.__sizeof__())
            if len(value) > LARGE:  # whatever made it may have taken its time
                self._look()
        elif isinstance(value, list | tuple | Mapping | set | frozenset):
            self._spend(self._size(value))
        elif type(value) is int and value.bit_length() > INTEGER_BITS:
            raise InputRefused(f"it makes an integer of {value.bit_length()} bits")
        return value

    def shown(self, value: Any) -> str:
        """Return the text of a value, once that is sure to be short enough."""
        if not isinstance(value, str):
            self.made(value)
        return self.made(str(value))

    def joined(self, parts: Iterable[Any], separator: str = "") -> str:
        """Return the parts as one text, once that is sure to be short enough."""
        texts, characters = [], 0
        for part in parts:
            texts.append(str(part) if isinstance(part, str) else self.shown(part))
            self.step()
            characters += len(texts[-1]) + len(separator)
            self.length(characters)
        return self.made(separator.join(texts))

    def operation(self, operator: str, left: Any, right: Any) -> None:
        """Refuse an operation whose result would be too large, before it is computed."""
        self.step()
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str) and isinstance(times, int):
                    self.length(len(value) * times)
                elif isinstance(value, list | tuple) and isinstance(times, int):
                    self._spend(self._size(value) * max(0, times), only_check=True)
        if operator in ("*", "**") and type(left) is int and type(right) is int:
            power = left.bit_length() * (right if operator == "**" else 1)
            if max(power, right.bit_length()) > INTEGER_BITS:
                raise InputRefused("it makes an integer of thousands of digits")
        if operator == "%" and isinstance(left, str):
            self.formatted(left, right if isinstance(right, tuple) else (right,))

    def formatted(self, pattern: str, values: Iterable[Any]) -> None:
        """Refuse a format whose fields are wide or whose result would be too long."""
        values = list(values.values()) if isinstance(values, Mapping) else list(values)
        if WIDE.search(pattern):
            raise InputRefused(f"its format has a field wider than {WIDTH}")
        longest = max((len(self.shown(value)) for value in values), default=0)
        fields = pattern.count("%") + pattern.count("{")
        self.length(len(pattern) + fields * (longest + WIDTH * len(WIDE_FIELD.findall(pattern))))

    def replaced(self, text: str, old: str, new: str) -> None:
        """Refuse a replacement whose result would be too long."""
        times = text.count(old) if old else len(text) + 1
        self.length(len(text) + times * len(new))

    def width(self, *values: Any) -> None:
        """Refuse numbers that stand for a width and are absurd as one."""
        for value in values:
            if isinstance(value, int) and abs(value) > WIDTH:
                raise InputRefused(f"it asks for a width of {value}; at most {WIDTH} is allowed")

    def _look(self) -> None:
        """Refuse to go on once the time is over."""
        if time.thread_time() > self._deadline:
            raise InputRefused(
                f"it took more than {SECONDS:g} s of processor time, where a few milliseconds are "
                "usual"
            )

    def _size(self, value: Any, depth: int = 0, known: dict[int, int] | None = None) -> int:
        """Return about how many bytes a value takes when written out, shared parts repeated."""
        if isinstance(value, str):
            return value.__sizeof__()
        if not isinstance(value, list | tuple | Mapping | set | frozenset):
            return NODE_BYTES
        # Within one walk every part stays alive, so its identity is its own.
        known = {} if known is None else known
        found = self._given.get(id(value)) or known.get(id(value))
        if found:
            return found
        if depth > DEPTH:
            raise InputRefused(f"it handles lists nested deeper than {DEPTH}")
        size = NODE_BYTES
        for part in value:
            size += self._size(part, depth + 1, known)
            if isinstance(value, Mapping):
                size += self._size(value[part], depth + 1, known)
        known[id(value)] = size
        return size

    def _spend(self, size: int, *, only_check: bool = False) -> None:
        """Take `size` bytes from what may still be made."""
        if size > self._left:
            raise InputRefused(f"its values take more than {MADE_BYTES >> 20} MiB")
        self._left -= 0 if only_check else size

    def _too_long(self, characters: int) -> None:
        raise InputRefused(
            f"it makes a text of {characters} characters; at most {self.output_limit} are allowed"
        )
