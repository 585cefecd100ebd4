"""Leaving a pool with a failure, so that the peers hear of it and nobody waits."""

from __future__ import annotations

import sys

STOPPED = (130, 143)
"""After SIGINT and SIGTERM all processes leave together, each once its checkpoint landed."""

UNHEARD_STATUS = 70
"""The status of a process that another one's failure ended, as `dew.artifacts.failure` has it."""


def leave_pool(error: BaseException, where: str, status: int) -> None:
    """Tell the pool of a failure and end this process with `status`; return if it is in none.

    The ordinary way out waits in jax's shutdown barrier for peers that wait for this process.
    A status of 0, or one that says "stopped by a signal", goes the ordinary way.

    Args:
        error: what went wrong.
        where: the phase it went wrong in.
        status: from 0 to 255.
    """
    if status in (0, *STOPPED) or "jax" not in sys.modules:
        return
    from dew.artifacts.coordination import pooled, rank, this_process
    from dew.artifacts.failure import leave_failed

    if not pooled():
        return
    said = f"{type(error).__name__}: {error}".strip().splitlines()[0][:500]
    print(f"{this_process()} (rank {rank()}) ends: {said}", file=sys.stderr, flush=True)
    leave_failed(error, where, status)


def status_of(error: BaseException) -> int:
    """Return the exit status for an error that ends a program."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    if type(error).__name__ == "PeerFailure":
        return UNHEARD_STATUS
    return int(getattr(error, "exit_status", 1))
