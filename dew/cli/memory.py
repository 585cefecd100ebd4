"""What a person is told when the host's memory ran out: how much there was, and what helps."""

from __future__ import annotations

import os
import sys

_GIB = 2**30
_SIGNS = ("Out of memory", "RESOURCE_EXHAUSTED")


def memory_note(error: BaseException) -> str | None:
    """Return how much memory this process has and may have, where `error` is for want of it.

    Of a device's own memory the error speaks itself, and the result is None.
    """
    found: BaseException | None = error
    while found is not None and not _is_of_memory(found):
        found = found.__cause__
    if found is None or not _on_host():
        return None
    import resource  # not on every system, and seldom wanted

    most, which = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "the machine has"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < most:
        import resource  # not on every system, and seldom wanted

    most, which = limit, "its limit (ulimit -v) is"
    return (
        f"memory ran out: this process holds {_held() / _GIB:.2f} GiB of address space, {which} "
        f"{most / _GIB:.2f} GiB. Use a smaller batch or shorter rows, or raise the limit; "
        "`dew finetune --dry-run` says what a step takes."
    )


def _is_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS)


def _on_host() -> bool:
    jax = sys.modules.get("jax")
    return jax is None or jax.default_backend() == "cpu"


def _held() -> int:
    """Return the bytes of address space that this process holds, 0 where that is unknown."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
