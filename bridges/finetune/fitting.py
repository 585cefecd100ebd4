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


@dataclass(frozen=True)
class Needs:
    """The bytes that a run takes on a device beside what the process itself holds.

    Args:
        step: the most that a step holds, its state and batch among it.
        state: what a step is given, which lasts until the result is written.
        loaded: the model as it was loaded, where training copies it.
        writing: what is made to write the result and to compare it with what was written.
    """

    step: int
    state: int
    loaded: int
    writing: int

    @property
    def beyond(self) -> int:
        """How much more writing takes than a step."""
        return max(0, self.state + self.writing - self.step)

    @property
    def total(self) -> int:
        """The most that is held at one time."""
        return self.step + self.loaded + self.beyond


def needs(memory: Any, params: Any, *, adapter: bool, generates: bool) -> Needs:
    """Return what a run takes.

    A run ends by loading what it wrote. A model that writes text is compared by greedy tokens too,
    from a copy of its layers as the decode engine wants them; an adapter is merged into one.

    Args:
        memory: XLA's account of the compiled step.
        params: the model's parameters or their shapes.
        adapter: whether an adapter is trained beside them, which leaves them as they are.
        generates: whether the model writes text.
    """
    import jax

    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    sizes = [(path, leaf.size * leaf.dtype.itemsize) for path, leaf in leaves]
    whole = sum(size for _, size in sizes)
    layers = sum(size for path, size in sizes if getattr(path[-1], "key", "") != "table")
    return Needs(
        step=memory.total,
        state=memory.argument,
        loaded=0 if adapter else whole,
        writing=whole + layers * (int(adapter) + int(generates)),
    )


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
