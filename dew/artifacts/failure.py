"""A failing process tells its pool, and a pool that cannot hear it ends."""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any

from dew.artifacts.coordination import delete, pooled, put, rank, this_process, under

FAILURE_DIRECTORY = "dew/failure/"
FAILURE_KEY = FAILURE_DIRECTORY + "published"
"""Where in the coordination service a failing process writes its error."""

ENDED_DIRECTORY = "dew/ended/"
"""Where a process that the grace ran out for says why it ends: from then on no agreement can be
held, so its peers wait no longer."""

FAILURE_GRACE_SECONDS = 60.0
"""How long a published failure may wait for an agreement to withdraw it before all end."""

UNHEARD_STATUS = 70
"""The exit status of a process that a peer's failure ended."""

_POLL_SECONDS = 0.5
# Process 0 holds the service: were it the first to go, its peers would die before they print.
_LINGER_SECONDS = 2.0
_MESSAGE = 2000

_installed: list[threading.Thread] = []
_ended = threading.Event()


def publish_failure(error: BaseException, where: str) -> bool:
    """Write this process's failure where every process's watch sees it.

    Args:
        error: what went wrong.
        where: the phase it went wrong in.

    Returns:
        False where a failure is published already: the first stands. False without a pool.
    """
    if not pooled():
        return False
    text = f"{type(error).__name__}: {error}"[:_MESSAGE]
    return put(FAILURE_KEY, json.dumps({"process": this_process(), "where": where, "error": text}))


def withdraw_failure() -> None:
    """Take the published failure away, once all have heard it at an agreement."""
    if pooled():
        delete(FAILURE_DIRECTORY)


def published_failure() -> str | None:
    """Return the published failure as one line, or None."""
    found = under(FAILURE_DIRECTORY) if pooled() else {}
    if not found:
        return None
    said = json.loads(next(iter(found.values())))
    return f"{said['process']} failed in {said['where']}: {said['error']}"


def end_pool_on_failure(grace: float = FAILURE_GRACE_SECONDS) -> None:
    """Make this process end when it fails, or when a peer's failure goes unheard.

    An uncaught exception is printed, published, and ends the process at once: the ordinary way
    out would wait in jax's shutdown barrier for peers that wait for this process. A watch thread
    ends the process `grace` seconds after it first saw a failure that is still published then.

    Call it after the pool has formed and before the backend opens. A second call does nothing.

    Args:
        grace: seconds.
    """
    if not pooled() or _installed:
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        before(kind, error, trace)
        leave_failed(error, "an uncaught exception", 1)

    sys.excepthook = hook
    watch = threading.Thread(target=_watch, args=(grace,), name="failure watch", daemon=True)
    _installed.append(watch)
    watch.start()
    atexit.register(_end)


def _end() -> None:
    """End the watch, before jax leaves the pool.

    A thread that is inside the service when the interpreter goes down aborts the process.
    """
    _ended.set()
    for watch in _installed:
        watch.join()


def leave_failed(error: BaseException, where: str, status: int) -> None:
    """Publish a failure and end this process at once, with `status`."""
    try:
        publish_failure(error, where)
    finally:
        _leave(status)


def _watch(grace: float) -> None:
    first_seen: tuple[str, float] | None = None
    while not _ended.wait(_POLL_SECONDS):
        try:
            failure, ended = published_failure(), under(ENDED_DIRECTORY)
        except Exception:
            # The service is gone, and with it process 0: jax ends this process itself.
            return
        if ended:
            _end_because(next(iter(ended.values())))
        if failure is None:
            first_seen = None
        elif first_seen is None or first_seen[0] != failure:
            first_seen = (failure, time.monotonic())
        elif time.monotonic() - first_seen[1] >= grace:
            put(f"{ENDED_DIRECTORY}{rank():08d}", failure)
            _end_because(failure)


def _end_because(failure: str) -> None:
    _say(f"{this_process()} ends: {failure}")
    faulthandler.dump_traceback(all_threads=True)
    _say(f"{this_process()} ended because {failure}")
    _leave(UNHEARD_STATUS)


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if rank() == 0:
        time.sleep(_LINGER_SECONDS)
    os._exit(status)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
