"""Which steps a resume can read, found and checked by all processes together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dew.artifacts.agreement import Meetings
from dew.artifacts.coordination import pool_size, rank
from dew.checkpoints.manifest import Manifest, damaged_files
from dew.checkpoints.meeting import agreed_values
from dew.checkpoints.placement import is_ours
from dew.checkpoints.steps import Steps, steps_of

# All reading is done on the threads that run the program, in the same order on all processes.
READERS = Meetings("checkpoints/readers")


@dataclass(frozen=True)
class Found:
    """What every process can read.

    Attributes:
        shared: manifests by step, oldest first.
        local: the same of each process's own checkpoints.
        broken: steps of the shared folder whose manifests cannot be read.
        odd: names in the shared folder that were passed over.
    """

    shared: Mapping[int, Manifest]
    local: Mapping[int, Manifest]
    broken: tuple[int, ...]
    odd: tuple[str, ...]

    @property
    def steps(self) -> list[int]:
        """All steps, oldest first."""
        return sorted({*self.shared, *self.local})

    @property
    def local_step(self) -> int | None:
        """The newest step that every process has of its own."""
        return max(self.local, default=None)

    def without(self, damaged: Collection[tuple[int, bool]]) -> Found:
        """Return what is left when some steps are damaged, each given with whether it is local."""
        return replace(
            self,
            shared={step: m for step, m in self.shared.items() if (step, False) not in damaged},
            local={step: m for step, m in self.local.items() if (step, True) not in damaged},
        )


def find(directory: Path, local: Path | None) -> Found:
    """Look into the folders, and keep what every process sees.

    Args:
        directory: the folder that all share.
        local: this process's own, or None.
    """
    shared, own = Steps({}, (), ()), {}

    def look() -> dict[str, list[int]]:
        nonlocal shared, own
        shared = steps_of(directory)
        held = steps_of(local).whole if local is not None else {}
        own = {step: m for step, m in held.items() if is_ours(m.placement, str(directory))}
        return {"shared": list(shared.whole), "local": list(own)}

    seen = agreed_values(READERS, look)
    return Found(
        {step: m for step, m in shared.whole.items() if all(step in s["shared"] for s in seen)},
        {step: m for step, m in own.items() if all(step in s["local"] for s in seen)},
        shared.broken,
        shared.odd,
    )


def damage_of(folder: Path, manifest: Manifest, *, own: bool) -> list[str]:
    """Return a line for each damaged file of a checkpoint, found by all processes together.

    Args:
        folder: the checkpoint.
        manifest: what its files should be.
        own: whether each process has a checkpoint of its own there and checks all of that one;
            else each checks a share of the one they have in common.
    """
    names = sorted(manifest.files)
    mine = names if own else names[rank() :: pool_size()]
    files = {name: manifest.files[name] for name in mine}
    found = agreed_values(READERS, lambda: damaged_files(folder, files))
    return [line for lines in found for line in lines]
