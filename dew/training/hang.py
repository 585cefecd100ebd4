"""A step that never ends, because some process of the pool is alive but stuck."""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dew.artifacts.coordination import pooled, this_process
from dew.artifacts.failure import UNHEARD_STATUS, leave_failed, publish_failure

HANG_SECONDS = 1800.0
"""How long a process waits for one batch or one step before it gives its pool up."""

_POLL_SECONDS = 0.5
# The peers wait as long, give or take a step: the first to go would break the collective that the
# others are in, and they would end by that error, without their stacks.
_LINGER_SECONDS = 5.0


class Hung(RuntimeError):
    """A wait that took longer than the run's `hang_timeout`."""


class HangWatch:
    """Ends this process, and with it the pool, when one wait of the loop takes too long.

    A stuck process still beats its heart, and no collective on CPU or GPU times out by itself, so
    its peers would wait for ever. Whoever waits too long writes the stacks of its threads and
    publishes its failure; the others hear it, write theirs, and end too. Alone, a process is
    never ended: a user can see and stop it.

    Args:
        seconds: how long a wait may take.
    """

    def __init__(self, seconds: float = HANG_SECONDS):
        self._seconds = seconds
        self._waiting: tuple[float, str] | None = None
        self._closed = threading.Event()
        if pooled():
            threading.Thread(target=self._watch, name="hang watch", daemon=True).start()

    @contextmanager
    def over(self, what: str) -> Iterator[None]:
        """Watch over a wait, named for the message."""
        self._waiting = (time.monotonic(), what)
        try:
            yield
        finally:
            self._waiting = None

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            waiting = self._waiting
            if waiting is None or time.monotonic() - waiting[0] < self._seconds:
                continue
            error = Hung(
                f"{this_process()} waited {self._seconds:.0f} s for {waiting[1]}: a process of "
                "the pool is stuck. The stacks of all of them are on their standard errors; "
                "raise hang_timeout if one step may take that long"
            )
            faulthandler.dump_traceback(all_threads=True)
            print(f"Hung: {error}", file=sys.stderr, flush=True)
            publish_failure(error, "waiting")
            time.sleep(_LINGER_SECONDS)
            leave_failed(error, "waiting", UNHEARD_STATUS)
