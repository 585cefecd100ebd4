"""How a folder becomes a checkpoint: written aside, synced, renamed; and how one goes away.

A reader can meet a checkpoint's name only when all its bytes are on disk. Whatever carries
`.tmp-` in its name is on its way in or out, and nobody reads it.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from dew.checkpoints.lock import NAME as LOCK

SENTINEL = "checkpoint-is-incomplete.txt"
PREFIX = "checkpoint-"
ASIDE = ".tmp-"
LARGEST_STEP = 2**63 - 1
_STEP = re.compile(r"checkpoint-(0|[1-9][0-9]{0,18})")


class CheckpointFailed(RuntimeError):
    """A checkpoint that did not land; the older ones are as they were."""


def folder_name(step: int) -> str:
    """Return the folder name of a step."""
    return f"{PREFIX}{step}"


def step_named(name: str) -> int | None:
    """Return the step that a folder's name means, or None for any other spelling."""
    match = _STEP.fullmatch(name)
    step = int(match[1]) if match else None
    return step if step is not None and step <= LARGEST_STEP else None


def is_aside(name: str) -> bool:
    """Tell whether a folder is on its way in or out."""
    return name.startswith(PREFIX) and ASIDE in name


def aside_folder(directory: Path, step: int) -> Path:
    """Return a name, in nobody's use, for a checkpoint on its way in."""
    return directory / f"{folder_name(step)}{ASIDE}{uuid.uuid4().hex[:8]}"


def begin(aside: Path) -> None:
    """Make a folder aside, marked incomplete as Hugging Face marks one."""
    aside.mkdir(parents=True)
    (aside / SENTINEL).write_text("This checkpoint is being written.\n")


def files_under(folder: Path) -> Iterator[Path]:
    """Yield every file below `folder` in a fixed order, the sentinel left out."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != SENTINEL:
            yield path


def make_durable(folder: Path) -> None:
    """Flush every file and folder below `folder`, and itself, to the disk."""
    for path in files_under(folder):
        sync(path)
    for below, _, _ in os.walk(folder, topdown=False):
        sync(Path(below))


def commit(aside: Path, step: int) -> Path:
    """Make every byte of a folder aside durable, then give it its step's name.

    A folder that already bears the name is moved aside first and removed after.
    """
    make_durable(aside)
    (aside / SENTINEL).unlink()
    sync(aside)
    final = aside.parent / folder_name(step)
    replaced = _renamed_aside(final) if final.exists() else None
    os.rename(aside, final)
    sync(final.parent)
    _sync_above(final.parent)
    if replaced is not None:
        shutil.rmtree(replaced)
    return final


def remove(folder: Path) -> None:
    """Take a checkpoint away: first its name, then its files, so none is ever half there."""
    doomed = _renamed_aside(folder)
    sync(folder.parent)
    shutil.rmtree(doomed)


def _renamed_aside(folder: Path) -> Path:
    doomed = folder.with_name(f"{folder.name}{ASIDE}{uuid.uuid4().hex[:8]}")
    os.rename(folder, doomed)
    return doomed


def sweep(directory: Path) -> None:
    """Remove what an earlier, killed process left aside."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if is_aside(path.name):
            shutil.rmtree(path)
        elif path.name.startswith(f"{LOCK}."):
            path.unlink()


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_above(directory: Path) -> None:
    """Flush the folders that hold a run's folder, so that its name is there after a power loss."""
    for folder in directory.parents:
        if os.path.ismount(folder / directory.relative_to(folder).parts[0]):
            return
        try:
            sync(folder)
        except PermissionError:
            return  # this program could make no folder there


def bytes_under(folder: Path) -> int:
    """Return the bytes that a folder's files hold; those that vanish meanwhile count nothing."""
    total = 0
    for folder_path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(folder_path, name)).st_size
            except OSError:
                continue
    return total
