"""jax's coordination service, the one host-side meeting place of a pool's processes.

jax has no public name for its key-value store; this module is the only one that reaches for it.
Nothing here opens the backend.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from jax._src.distributed import global_state

FIRST_POLL, LONGEST_POLL = 2e-4, 2e-2
"""Seconds between two looks at the store: short at first, so that an agreement costs little."""


def pooled() -> bool:
    """Tell whether this process belongs to a pool (`jax.distributed.initialize` was called)."""
    return global_state.client is not None


def rank() -> int:
    """Return this process's index in the pool, 0 without one."""
    return global_state.process_id if pooled() else 0


def pool_size() -> int:
    """Return how many processes the pool has, 1 without one."""
    return (global_state.num_processes or 1) if pooled() else 1


def this_process() -> str:
    """Return `host:pid`, asking neither the backend nor the pool."""
    return f"{socket.gethostname()}:{os.getpid()}"


def put(key: str, value: str) -> bool:
    """Write a value for all to see; False where the key is taken, and stays as it is."""
    try:
        _client().key_value_set(key, value)
    except Exception as error:
        if "ALREADY_EXISTS" in str(error):
            return False
        raise
    return True


def under(prefix: str) -> dict[str, str]:
    """Return what lies under a prefix, by the rest of the key; empty where nothing does."""
    return {key.removeprefix(prefix): text for key, text in _client().key_value_dir_get(prefix)}


def delete(prefix: str) -> None:
    """Remove a key, or all keys under a prefix that ends in a slash."""
    _client().key_value_delete(prefix)


def when_all_wrote(prefix: str, count: int, patience: float) -> Mapping[str, str]:
    """Return what lies under a prefix once it holds `count` keys.

    Polls, so that Ctrl-C is heard while it waits: a barrier hears it only at its end.

    Raises:
        TimeoutError: fewer keys after `patience` seconds; names those that are there.
    """
    deadline, pause = time.monotonic() + patience, FIRST_POLL
    while len(found := under(prefix)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{len(found)} of {count} processes reached {prefix!r} within {patience:.0f} s "
                f"({', '.join(sorted(found)) or 'none'}); the others are stuck or gone"
            )
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_POLL)
    return found


def _client() -> Any:
    return global_state.client
