"""What is wrong with the rows of one file, gathered so that one message says it all."""

from __future__ import annotations

from collections.abc import Iterable

from bridges.files.regular_file import LFS_POINTER, shown_path
from dew.errors import InputRefused, listed, nearest, shown

PROBLEMS = 10
FIELDS = 12


class RowProblems:
    """Collects the unusable rows of a file; enough of them end the reading.

    Args:
        path: the file, for the message.
        expected: what a row should have been, a sentence.
    """

    def __init__(self, path: object, expected: str) -> None:
        self._path = str(path)
        self._expected = expected
        self._problems: list[str] = []

    def add(self, place: str, what: str) -> None:
        """Note that the row at `place` (such as `line 4`) is unusable because of `what`.

        Raises:
            InputRefused: it is the last one that a message has room for.
        """
        self._problems.append(f"{place}: {what}")
        if len(self._problems) == PROBLEMS:
            self._problems.append("reading stopped here")
            self.refuse()

    def refuse(self) -> None:
        """Raise if there was any problem.

        Raises:
            InputRefused: with every place and reason.
        """
        if self._problems:
            heading = f"{shown_path(self._path)}: rows that cannot be used. {self._expected}"
            raise InputRefused(listed(heading, self._problems))


def text_problem(value: object) -> str | None:
    """Return why a field's value is no text, or None when it is one."""
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        return f"holds {kind}, not a text"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return f"holds half a surrogate pair at character {error.start}, which no text has"
    return None


def absent_field(text_field: str, fields: Iterable[object]) -> str:
    """Return the sentence that says a field is not there and which fields are."""
    names = [str(name) for name in fields]
    shown_names = ", ".join(shown(name, 40) for name in names[:FIELDS]) or "none"
    more = f" and {len(names) - FIELDS} more" if len(names) > FIELDS else ""
    return (
        f"no field {shown(text_field, 60)}; there is {shown_names}{more}"
        f"{nearest(text_field, names)}"
    )


def refuse_pointer(head: bytes, path: object) -> None:
    """Refuse a file that begins as what Git LFS leaves in place of the data.

    Raises:
        InputRefused: it does.
    """
    if head.startswith(LFS_POINTER):
        raise InputRefused(
            f"{shown_path(str(path))}: a Git LFS pointer, not the data. Run `git lfs pull` there."
        )
