"""Regular expressions over module names, matched in time that grows with the name's length alone.

An adapter's config comes from anyone, and Python's own matcher takes exponential time over some
expressions. Here all ways of matching are followed at once (Thompson 1968), which gives the same
answers for expressions without back references and looks to the side; those are refused.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from dew.errors import InputRefused, shown

LONGEST, MOST_STATES, MOST_REPEATS, DEEPEST = 2_000, 4_000, 1_000, 50
_DIGITS, _SPACES = frozenset(string.digits), frozenset(string.whitespace)
_WORDS = frozenset(string.ascii_letters + string.digits + "_")
_SETS = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_ANCHORS = {"^": "start", "$": "end"}
_ESCAPED_ANCHORS = {"A": "start", "Z": "end", "b": "edge", "B": "inside"}

Test = Callable[[str], bool]


@dataclass
class _State:
    """One state: it eats a character that passes `test`, or moves on freely where `holds`."""

    test: Test | None = None
    holds: str = ""
    to: tuple[int, ...] = ()


class NamePattern:
    """One expression, of Python's syntax.

    Args:
        text: characters, `.`, classes, groups, `|`, anchors, edges of words and repeats.
        where: the file and key, for messages.

    Raises:
        InputRefused: another syntax, or an expression too long.
    """

    def __init__(self, text: str, where: str = "target_modules") -> None:
        self._text, self._where, self._at, self._depth = text, where, 0, 0
        self._states: list[_State] = []
        if len(text) > LONGEST:
            self._refuse(f"longer than {LONGEST} characters")
        first, last = self._either()
        if self._at < len(text):
            self._refuse(f"an unexpected {text[self._at]!r}")
        self._first, self._last = first, last
        self._steps: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}

    def fullmatch(self, name: str) -> bool:
        """Say whether the expression matches the whole of `name`."""
        return self._matches(frozenset({self._first}), name)

    def matches_end(self, name: str) -> bool:
        """Say whether it matches `name`, or what follows a dot of it, to the end."""
        return any(
            self._matches(frozenset({self._first}), name, start)
            for start in (0, *(n + 1 for n, letter in enumerate(name) if letter == "."))
        )

    def _matches(self, now: frozenset[int], name: str, start: int = 0) -> bool:
        before = name[start - 1] if start else ""
        for letter in name[start:]:
            key = now, before, letter
            if key not in self._steps:
                self._steps[key] = frozenset(
                    state.to[0]
                    for state in map(self._states.__getitem__, self._reached(*key))
                    if state.test is not None and state.test(letter)
                )
            now, before = self._steps[key], letter
            if not now:
                return False
        return self._last in self._reached(now, before, "")

    def _reached(self, now: frozenset[int], before: str, after: str) -> set[int]:
        """Return the states that `now` moves to without eating, between two characters."""
        edge = (before in _WORDS) != (after in _WORDS)
        holds = {"": True, "start": not before, "end": not after, "edge": edge, "inside": not edge}
        found, left = set(now), list(now)
        while left:
            state = self._states[left.pop()]
            if state.test is None and holds[state.holds]:
                fresh = set(state.to) - found
                found |= fresh
                left += fresh
        return found

    # The parser: each part gives the first and the last state of its piece of the machine.

    def _state(self, test: Test | None = None, holds: str = "") -> int:
        if len(self._states) >= MOST_STATES:
            self._refuse("too large")
        self._states.append(_State(test, holds))
        return len(self._states) - 1

    def _link(self, start: int, *to: int) -> None:
        self._states[start].to += to

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        letter = self._peek()
        if not letter:
            self._refuse("it ends too early")
        self._at += 1
        return letter

    def _either(self) -> tuple[int, int]:
        first, last = self._state(), self._state()
        while True:
            start, end = self._sequence()
            self._link(first, start)
            self._link(end, last)
            if self._peek() != "|":
                return first, last
            self._at += 1

    def _sequence(self) -> tuple[int, int]:
        first = last = self._state()
        while self._peek() not in ("", "|", ")"):
            begin = self._at
            start, end = self._atom()
            start, end = self._repeated(begin, start, end)
            self._link(last, start)
            last = end
        return first, last

    def _repeated(self, begin: int, start: int, end: int) -> tuple[int, int]:
        """Return the piece as often as the quantifier behind it says."""
        after = self._at
        low, high = self._quantifier()
        if (low, high) == (1, 1):
            return start, end
        if self._peek() in ("*", "+", "?", "{"):
            self._refuse("a repeat of a repeat")
        behind = self._at
        first = last = self._state()
        for number in range(low if high is None else high):
            if number:
                start, end = self._again(begin, after)
            self._link(last, start)
            if number >= low:
                out = self._state()
                self._link(last, out)
                self._link(end, out)
                end = out
            last = end
        if high is None:
            if low:
                start, end = self._again(begin, after)
            loop = self._state()
            self._link(last, loop)
            self._link(loop, start)
            self._link(end, loop)
            last = self._state()
            self._link(loop, last)
        self._at = behind
        return first, last

    def _again(self, begin: int, after: int) -> tuple[int, int]:
        """Return one more copy of the piece that stands from `begin`."""
        self._at = begin
        piece = self._atom()
        self._at = after
        return piece

    def _quantifier(self) -> tuple[int, int | None]:
        """Return how often at least and at most (None: any number) the last piece stands."""
        letter = self._peek()
        if letter in ("*", "+", "?"):
            self._at += 1
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[letter]
        elif letter == "{" and (counts := self._counts()) is not None:
            bounds = counts
        else:
            return 1, 1
        if self._peek() == "?":
            self._at += 1  # a lazy repeat matches the same names
        return bounds

    def _counts(self) -> tuple[int, int | None] | None:
        """Return the numbers of `{2}`, `{2,}` or `{2,5}`; None where a brace is a character."""
        inner, closed, _ = self._text[self._at + 1 :].partition("}")
        low, comma, high = inner.partition(",")
        if not closed or not (low + high).isdecimal() or not (low or comma):
            return None
        self._at += len(inner) + 2
        least, most = int(low or 0), (int(high) if high else None) if comma else int(low)
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            self._refuse(f"a repeat of {{{inner}}}")
        return least, most

    def _atom(self) -> tuple[int, int]:
        letter = self._take()
        if letter == "(":
            return self._group()
        if letter in _ANCHORS:
            return self._asserted(_ANCHORS[letter])
        if letter == "\\":
            escaped = self._take()
            if escaped in _ESCAPED_ANCHORS:
                return self._asserted(_ESCAPED_ANCHORS[escaped])
            return self._eats(self._escape(escaped))
        if letter == "[":
            return self._eats(self._class())
        if letter == ".":
            return self._eats(lambda found: found != "\n")
        if letter in "*+?":
            self._refuse(f"nothing before {letter!r} to repeat")
        return self._eats(letter.__eq__)

    def _group(self) -> tuple[int, int]:
        self._depth += 1
        if self._depth > DEEPEST:
            self._refuse(f"more than {DEEPEST} groups within each other")
        if self._peek() == "?":
            self._at += 1
            kind = self._take()
            if kind == "P" and self._peek() == "<":
                while self._take() != ">":
                    pass
            elif kind != ":":
                self._refuse("only plain groups, (?:...) and (?P<name>...) are matched")
        piece = self._either()
        if self._take() != ")":
            self._refuse("an unclosed group")
        self._depth -= 1
        return piece

    def _asserted(self, holds: str) -> tuple[int, int]:
        first, last = self._state(holds=holds), self._state()
        self._link(first, last)
        return first, last

    def _eats(self, test: Test) -> tuple[int, int]:
        first, last = self._state(test), self._state()
        self._link(first, last)
        return first, last

    def _escape(self, letter: str) -> Test:
        if letter.lower() in _SETS:
            known = _SETS[letter.lower()]
            return known.__contains__ if letter.islower() else lambda found: found not in known
        if letter.isalnum():
            self._refuse(f"\\{letter} is not matched")
        return letter.__eq__

    def _class(self) -> Test:
        negated = self._peek() == "^"
        self._at += negated
        tests: list[Test] = []
        while self._peek() != "]" or not tests:
            letter = self._take()
            escaped = letter == "\\"
            if escaped:
                letter = self._take()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                tests.append(self._range(letter, self._take()))
            else:
                tests.append(self._escape(letter) if escaped else letter.__eq__)
        self._at += 1
        return lambda found: any(test(found) for test in tests) != negated

    def _range(self, low: str, high: str) -> Test:
        if high < low or high == "\\":
            self._refuse(f"the range {low}-{high}")
        return lambda found: low <= found <= high

    def _refuse(self, why: str) -> NoReturn:
        raise InputRefused(
            f"{self._where}: {shown(self._text)} is no expression that dew matches: {why}; name "
            "the modules, or the ends of their names at a dot"
        )
