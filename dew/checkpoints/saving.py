"""One save: every process writes its part aside, and process 0 gives the whole its name.

All of this runs on the writers' threads, which meet in a row of their own. A save that fails on
one process fails on all, and leaves nothing behind.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dew.artifacts.agreement import Meetings
from dew.artifacts.coordination import pool_size, rank
from dew.checkpoints import commit
from dew.checkpoints.commit import CheckpointFailed
from dew.checkpoints.leaves import Node
from dew.checkpoints.leaves import Path as LeafPath
from dew.checkpoints.manifest import NAME, Manifest, file_digest
from dew.checkpoints.meeting import PartFailed, together
from dew.checkpoints.orbax_metadata import describe_for_orbax
from dew.checkpoints.position import position_arrays
from dew.checkpoints.shards import HostLeaf
from dew.checkpoints.steps import steps_of
from dew.checkpoints.tree import merge, process_folder, write_data, write_pieces


@dataclass(frozen=True)
class Save:
    """What one process brings to a save.

    Attributes:
        description: the manifest without its files.
        leaves: this process's pieces.
        outline: every leaf and every empty node of the state.
        row: its data position, as JSON carries it.
        error: what kept it from having the rest, or None.
    """

    description: Manifest
    leaves: Mapping[LeafPath, HostLeaf]
    outline: tuple[Node, ...]
    row: Mapping[str, Any]
    error: BaseException | None = None

    @property
    def step(self) -> int:
        """The step that is saved."""
        return self.description.step


def write_shared(
    save: Save,
    directory: Path,
    row: Meetings,
    *,
    sweep: bool,
    extra: Callable[[Path], None],
    retire: Callable[[], None],
) -> None:
    """Write a checkpoint of all processes into the folder that they share.

    Args:
        save: this process's part.
        directory: where the checkpoints lie.
        row: the meetings of the writers.
        sweep: whether to remove first what killed processes left.
        extra: adds files, on process 0, when the tree is whole.
        retire: removes what no longer has to stay, on process 0, when the checkpoint has landed.

    Raises:
        CheckpointFailed: it failed on some process; the same on all.
    """
    aside = commit.aside_folder(directory, save.step)

    def begin() -> str:
        _raise(save.error)
        if rank() == 0:
            if sweep:
                commit.sweep(directory)
            commit.begin(aside)
        return aside.name

    def write() -> dict[str, Any]:
        write_pieces(aside, rank(), save.leaves)
        own = process_folder(aside, rank())
        if rank() != 0 and own.is_dir():
            # Process 0 cannot flush what another host still holds in its memory.
            commit.make_durable(own)
        elements = [leaf.elements for leaf in save.leaves.values()]
        return {"files": _digests(aside, own), "elements": elements, "row": save.row}

    def finish() -> None:
        if rank() == 0:
            _check_whole(save.leaves, [part["elements"] for part in parts])
            merge(aside, pool_size())
            rows = position_arrays([part["row"] for part in parts])
            write_data(aside, rows)
            describe_for_orbax(aside, save.outline, rows)
            extra(aside)
            written = {name: digest for part in parts for name, digest in part["files"].items()}
            _describe(aside, save.description, written)
            commit.commit(aside, save.step)

    try:
        aside = directory / together(row, begin)[0]
        parts = together(row, write)
        together(row, finish)
    except BaseException as error:
        raise _failed(save.step, directory, aside, row, error) from _cause(error)
    try:
        together(row, lambda: retire() if rank() == 0 else None)
    except PartFailed as error:
        raise CheckpointFailed(
            f"checkpoint-{save.step} landed in {directory}, but older ones could not be "
            f"removed: {error}. Look at the folder's permissions and disk."
        ) from _cause(error)


def write_local(save: Save, directory: Path, row: Meetings) -> None:
    """Write this process's own checkpoint, in the place of the one before.

    The one before goes only when every process has the new one, so that one step is always on all.

    Raises:
        CheckpointFailed: it failed on some process; the same on all.
    """
    aside = commit.aside_folder(directory, save.step)

    def write() -> None:
        _raise(save.error)
        commit.sweep(directory)
        commit.begin(aside)
        write_pieces(aside, rank(), save.leaves)
        merge(aside, pool_size())
        write_data(aside, position_arrays([save.row]))
        _describe(aside, save.description, {})
        commit.commit(aside, save.step)

    def retire() -> None:
        for step in steps_of(directory).whole:
            if step != save.step:
                commit.remove(directory / commit.folder_name(step))

    landed = directory / commit.folder_name(save.step)
    try:
        together(row, write)
    except BaseException as error:
        if not aside.exists() and landed.exists():
            aside = landed
        raise _failed(save.step, directory, aside, row, error) from _cause(error)
    try:
        together(row, retire)
    except PartFailed as error:
        raise CheckpointFailed(
            f"checkpoint-{save.step} landed in {directory}, but the one before could not be "
            f"removed: {error}. Look at the folder's permissions and disk."
        ) from _cause(error)


def _check_whole(leaves: Mapping[LeafPath, HostLeaf], counts: list[list[int]]) -> None:
    """Hold what all processes wrote of each leaf to its size: none may be left out in silence."""
    for number, (path, leaf) in enumerate(leaves.items()):
        written, size = sum(count[number] for count in counts), math.prod(leaf.shape)
        if written != size:
            raise ValueError(
                f"{'/'.join(path)}: the processes wrote {written} of its {size} values; they "
                "do not see the same arrays"
            )


def _describe(aside: Path, description: Manifest, known: Mapping[str, str]) -> None:
    digests = {**_digests(aside, aside, known), **known}
    whole = replace(description, files=dict(sorted(digests.items())))
    (aside / NAME).write_text(whole.text(), encoding="utf-8")


def _digests(aside: Path, folder: Path, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the sha256 of the files below `folder`, by path below `aside`, but for known ones."""
    paths = {path.relative_to(aside).as_posix(): path for path in commit.files_under(folder)}
    return {name: file_digest(path) for name, path in paths.items() if name not in (known or {})}


def _failed(
    step: int, directory: Path, aside: Path, row: Meetings, error: BaseException
) -> CheckpointFailed:
    """Clear away what a failed save wrote, and return its error once that has been done."""
    written = commit.bytes_under(aside)
    shutil.rmtree(aside, ignore_errors=True)
    if isinstance(error, PartFailed):
        # Nobody hears of the failure before the disk is as it was.
        written = sum(row.votes(written))
    cause = str(error) if isinstance(error, PartFailed) else f"{type(error).__name__}: {error}"
    return CheckpointFailed(
        f"checkpoint-{step} did not land in {directory} ({written} bytes were written, "
        f"and removed): {cause}. Older checkpoints are as they were; "
        "free space or pass another directory, then start again."
    )


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ if isinstance(error, PartFailed) else error


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error
