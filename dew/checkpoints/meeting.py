"""A step that all processes take, each its part, and that fails on all where it fails on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dew.artifacts.agreement import Meetings, PeerFailure
from dew.artifacts.coordination import pooled, this_process

PATIENCE_SECONDS = 3600.0
"""How long a process waits for the others' parts: the slowest disk takes this long at most."""

LONGEST_CAUSE = 500


class PartFailed(RuntimeError):
    """A part failed on some process; the message names it and is the same on all.

    The cause is what was raised here, where the part of this process failed.
    """


def together(row: Meetings, part: Callable[[], Any]) -> list[Any]:
    """Run `part` on every process, and return what each of them gave, by rank.

    Args:
        row: the meetings that this thread holds with its counterparts.
        part: gives something that JSON carries.

    Raises:
        PartFailed: it failed on some process.
    """
    value: Any = None
    cause: BaseException | None = None
    try:
        value = part()
    except BaseException as error:
        cause = error
    text = None if cause is None else _text_of(cause)
    vote = {"error": text, "process": this_process(), "value": value}
    votes = row.votes(vote, patience=PATIENCE_SECONDS)
    failed = [vote for vote in votes if vote["error"] is not None]
    if failed:
        where = f"{failed[0]['process']}: " if pooled() else ""
        raise PartFailed(f"{where}{failed[0]['error']}") from cause
    return [vote["value"] for vote in votes]


def agreed_values(row: Meetings, part: Callable[[], Any]) -> list[Any]:
    """Do as `together`, and raise what was raised here as it was.

    Raises:
        PeerFailure: it failed on another process only.
        BaseException: what failed here.
    """
    try:
        return together(row, part)
    except PartFailed as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        raise PeerFailure(str(error)) from None


def _text_of(error: BaseException) -> str:
    # TensorStore adds its whole specification to its messages.
    text = f"{type(error).__name__}: {error}".partition(" [tensorstore_spec=")[0]
    return text[:LONGEST_CAUSE]
