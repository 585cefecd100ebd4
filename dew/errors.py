"""The errors that dew raises about what it was handed, and how they show a name."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Sequence

SHOWN_CHARACTERS = 200
SHOWN_PROBLEMS = 17
SHOWN_MESSAGE = 3_600
SEARCHED_NAMES = 2_000


class InputRefused(ValueError):
    """An input that dew will not use: a file, a field, a flag, a value.

    The message says what was found, what was expected and what to do. The command line prints
    it without a traceback and leaves with status 2.
    """


class WeightMismatch(InputRefused):
    """Tensors that do not fit the model: missing, left over or misshapen ones, all at once."""


class UnknownName(InputRefused, KeyError):
    """A name that no registry, command or section knows; the message offers the nearest ones."""

    def __str__(self) -> str:
        """Return the message itself; `KeyError` would show its repr."""
        return str(self.args[0]) if self.args else ""


def shown(value: object, limit: int = SHOWN_CHARACTERS) -> str:
    """Return `value` as one printable line of at most `limit` characters, control codes escaped."""
    text = ascii(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the names of `known` that look like `name`, or nothing."""
    searched = list(itertools.islice(known, SEARCHED_NAMES))  # a search of many takes seconds
    name = str(name)[:SHOWN_CHARACTERS]
    close = difflib.get_close_matches(name, searched, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(match) for match in close)}?" if close else ""


def listed(heading: str, problems: Sequence[str], limit: int = SHOWN_PROBLEMS) -> str:
    """Return `heading` and one indented line a problem.

    Beyond `limit` problems, or when the whole would grow past a screen of text, only the number
    of the rest is given.
    """
    lines, room = [heading], SHOWN_MESSAGE - len(heading)
    for problem in problems[:limit]:
        room -= len(problem) + 3
        if room < 0:
            break
        lines.append(f"  {problem}")
    if len(problems) >= len(lines):
        lines.append(f"  and {len(problems) - len(lines) + 1} more")
    return "\n".join(lines)
