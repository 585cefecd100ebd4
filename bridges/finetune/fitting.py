"""Whether a step fits into memory, and which settings make one that does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dew.cli.command import Settings

GIB = 2**30
VARIED = ("per_device_train_batch_size", "gradient_accumulation_steps", "activation_checkpointing")


@dataclass(frozen=True)
class Room:
    """What a run may hold on one device.

    Args:
        limit: bytes; None where nobody says.
        taken: bytes that the process holds before the model is there. An accelerator holds none;
            on CPU it is the interpreter, its libraries and what was compiled.
    """

    limit: int | None
    taken: int = 0

    def fits(self, needed: int) -> bool:
        """Say whether so many bytes beside what is taken fit."""
        return self.limit is None or needed + self.taken <= self.limit


def room(asked: int | None) -> Room:
    """Return the room on the first device.

    Args:
        asked: the bytes that a device may hold, where somebody says so.
    """
    import jax

    device = jax.local_devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return Room(asked or stats.get("bytes_limit"))
    return Room(asked or _host_bytes(), resident_bytes())


def resident_bytes() -> int:
    """Return the bytes of memory that this process holds, 0 where that is unknown."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def fitting(
    settings: Settings, fits: Callable[[Settings], bool], *, remats: bool
) -> dict[str, Any] | None:
    """Return the settings to change so that a step fits, or None where none of those tried does.

    Tried are recomputed activations first, then ever smaller batches with as much more
    accumulation, so that an update sees the same rows.

    Args:
        settings: those that do not fit.
        fits: compiles a step and says whether it does.
        remats: whether the model can recompute its activations.
    """
    for changes in _candidates(settings, remats=remats):
        if fits(replace(settings, values={**settings.values, **changes})):
            return changes
    return None


def _candidates(settings: Settings, *, remats: bool) -> Iterator[dict[str, Any]]:
    rows = settings["per_device_train_batch_size"]
    windows = settings["gradient_accumulation_steps"]
    again = remats and not settings["activation_checkpointing"]
    if again:
        yield {"activation_checkpointing": True}
    while rows > 1:
        smaller = max(part for part in range(1, rows // 2 + 1) if rows % part == 0)
        windows, rows = windows * (rows // smaller), smaller
        changes = {
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": windows,
        }
        yield changes
        if again:
            yield {**changes, "activation_checkpointing": True}


def flags(changes: Mapping[str, Any]) -> str:
    """Return settings as they are typed."""
    return " ".join(
        f"--{name}" if value is True else f"--{name} {value}" for name, value in changes.items()
    )


def _host_bytes() -> int | None:
    """Return the bytes of memory that this process may come to hold, by the system's account."""
    limits = []
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        limits.append(int(lines["MemAvailable"].split()[0]) * 1024 + resident_bytes())
    except (OSError, KeyError, ValueError):
        pass
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            limits.append(int(file.read()))
    except (OSError, ValueError):
        pass
    return min(limits, default=None)
