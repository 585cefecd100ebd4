"""Which steps a folder holds, which of them to read, and which to let go."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dew.checkpoints.commit import PREFIX, is_aside, step_named
from dew.checkpoints.manifest import NAME, CheckpointDamaged, Manifest, read_manifest
from dew.errors import shown


@dataclass(frozen=True)
class Steps:
    """What a folder holds.

    Attributes:
        whole: manifests by step, oldest first.
        broken: steps whose folder is ours by its name and whose manifest cannot be read.
        odd: what looks like a checkpoint and is not one of ours: a step spelled otherwise
            (`checkpoint-007`), a copy under another name, a folder that dew did not write.
    """

    whole: dict[int, Manifest]
    broken: tuple[int, ...]
    odd: tuple[str, ...]


def steps_of(directory: Path) -> Steps:
    """Return what a folder holds; nothing where it is not there."""
    whole: dict[int, Manifest] = {}
    broken: list[int] = []
    odd: list[str] = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if is_aside(path.name) or not path.is_dir():
            continue
        if not (path.name.startswith(PREFIX) or (path / NAME).exists()):
            continue
        step = step_named(path.name)
        manifest = _manifest_or_none(path)
        if step is None or (manifest is not None and manifest.step != step):
            odd.append(path.name)
        elif manifest is not None:
            whole[step] = manifest
        elif (path / NAME).parent.is_dir():
            broken.append(step)
        else:
            odd.append(path.name)
    return Steps(dict(sorted(whole.items())), tuple(sorted(broken)), tuple(odd))


def best_of(steps: Mapping[int, Manifest]) -> int | None:
    """Return the step with the lowest loss that a save reported; the earlier one of a tie."""
    losses = {step: m.metrics["loss"] for step, m in steps.items() if "loss" in m.metrics}
    return min(losses, key=lambda step: (losses[step], step)) if losses else None


def expendable(steps: Mapping[int, Manifest], keep: int) -> list[int]:
    """Return the steps to delete, oldest first: neither among the latest `keep` nor the best."""
    kept = {*sorted(steps)[-keep:], best_of(steps)}
    return [step for step in sorted(steps) if step not in kept]


def warn_of_odd(directory: Path, odd: tuple[str, ...]) -> None:
    """Say once which folders were passed over, and why."""
    warnings.warn(
        f"{directory}: passed over {', '.join(shown(name, 60) for name in odd[:8])}"
        f"{' and others' if len(odd) > 8 else ''}: not checkpoint-N folders that dew committed.",
        stacklevel=5,
    )


def _manifest_or_none(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except CheckpointDamaged:
        return None
