"""How the processes of a pool agree on an outcome before they go on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, TypeVar

from dew.artifacts.coordination import (
    delete,
    pool_size,
    pooled,
    put,
    rank,
    this_process,
    when_all_wrote,
)
from dew.artifacts.failure import UNHEARD_STATUS, publish_failure, withdraw_failure

T = TypeVar("T")

AGREEMENT_PATIENCE_SECONDS = 24 * 3600
"""How long a process waits at an agreement for the rest: host work before it can take hours."""

_DIRECTORY = "dew/agreement/"
_MESSAGE = 2000


class PeerFailure(RuntimeError):
    """Another process failed in a phase that this one passed."""

    exit_status = UNHEARD_STATUS


class Meetings:
    """A row of meetings that all processes hold in the same order.

    Each thread that meets its counterparts on the other processes needs a row of its own: in one
    row, two threads would take each other's turns.

    Args:
        name: of the row, the same on all processes and in no other use.
    """

    def __init__(self, name: str):
        self._directory = f"{_DIRECTORY}{name}/"
        self._turns = itertools.count()

    def votes(self, mine: Any, *, patience: float = AGREEMENT_PATIENCE_SECONDS) -> list[Any]:
        """Return what every process brought to the next meeting, in the order of their ranks.

        Args:
            mine: anything that `json` encodes.
            patience: seconds to wait for the others.

        Raises:
            TimeoutError: some did not come.
        """
        if not pooled():
            return [mine]
        turn = next(self._turns)
        here = f"{self._directory}{turn}/"
        put(f"{here}{rank():08d}", json.dumps(mine))
        found = when_all_wrote(here, pool_size(), patience)
        # Whoever is here has read the meeting before the last, since it came to the last.
        if rank() == 0 and turn >= 2:
            delete(f"{self._directory}{turn - 2}/")
        return [json.loads(found[name]) for name in sorted(found)]


_main = Meetings("main")


def agreed(phase: str, operation: Callable[[], T]) -> T:
    """Run `operation` on every process, then go on only if it went well on all.

    Args:
        phase: its name, the same on all processes, for messages.
        operation: called once on each; on one process that is all that happens.

    Raises:
        PeerFailure: it failed elsewhere.
        Exception: what it raised here.
    """
    if not pooled():
        return operation()
    value: Any = None
    error: BaseException | None = None
    try:
        value = operation()
    except BaseException as caught:
        error = caught
    agree_process_phase(error, phase=phase)
    return value


def agree_process_phase(
    error: BaseException | None, *, phase: str, available: bool = True, plan: str = ""
) -> int:
    """Raise if any process failed, and else count the processes that have what they need.

    Every live process has to get here. A process that failed publishes its error first, so that
    peers which never arrive, being stuck in a collective with it, end all the same; once all have
    met, the failure is withdrawn.

    Args:
        error: what failed on this process, or None.
        phase: the same on all processes.
        available: whether this process has input for what comes next.
        plan: what this process is about to do with the others; it must be equal on all.

    Returns:
        How many processes said `available`.

    Raises:
        PeerFailure: another process failed, or is in another phase or at another plan.
        BaseException: `error`, where it was given.
    """
    if not pooled():
        if error is not None:
            raise error
        return int(available)
    if error is not None:
        publish_failure(error, phase)
    text = None if error is None else f"{type(error).__name__}: {error}"[:_MESSAGE]
    votes = _main.votes(
        {
            "phase": phase,
            "available": available,
            "error": text,
            "plan": plan,
            "process": this_process(),
        }
    )
    failed = [vote for vote in votes if vote["error"] is not None]
    if failed:
        # Before any process goes on: a failure it met next would find this one still standing.
        if rank() == 0:
            withdraw_failure()
        _main.votes({})
    if error is not None:
        raise error
    if failed:
        first = failed[0]
        raise PeerFailure(f"{first['process']} failed in {first['phase']}: {first['error']}")
    _same(votes, "phase")
    _same(votes, "plan")
    return sum(vote["available"] for vote in votes)


def broadcast_from_process_zero(value: Any) -> Any:
    """Return process 0's value on every process, as JSON carries it.

    Args:
        value: anything that `json` encodes; read on process 0 only.

    Raises:
        TypeError: JSON does not encode it, on process 0; the others raise `PeerFailure`.
    """
    text = agreed("broadcast", lambda: json.dumps(value) if rank() == 0 else "")
    return json.loads(_main.votes(text)[0])


def _same(votes: list[Any], what: str) -> None:
    first = votes[0][what]
    for vote in votes:
        if vote[what] != first:
            raise PeerFailure(
                f"the processes do not agree on their {what}: {votes[0]['process']} is at "
                f"{first!r:.500}, {vote['process']} at {vote[what]!r:.500}"
            )
