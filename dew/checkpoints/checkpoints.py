"""`Checkpoints`: the checkpoints of one run, in one directory."""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dew.checkpoints import commit
from dew.checkpoints.commit import CheckpointFailed
from dew.checkpoints.leaves import fields_of, host_copy, leaves_of
from dew.checkpoints.manifest import (
    NAME,
    CheckpointDamaged,
    Manifest,
    check_files,
    file_digest,
    read_manifest,
)
from dew.checkpoints.position import position_of, position_rows
from dew.checkpoints.steps import best_of, committed_steps, expendable, warn_of_odd
from dew.checkpoints.template import read_into, shapes_of, structs_of
from dew.checkpoints.tree import read_data, write_tree
from dew.data import DataPartition
from dew.errors import InputRefused
from dew.typing import Variables

SAVE_NOW = "save-now"

LONGEST_CAUSE = 500


class Checkpoints:
    """The checkpoints of one run, under `directory`/checkpoint-<step>.

    Building one touches no disk. Kept are the latest `keep` steps, for a resume, and the step
    whose save reported the lowest `metrics["loss"]`; a save that reported none is never best.

    A checkpoint is written aside, every file and folder is synced, a manifest records each
    file's sha256, and only then does the folder get its name. A process killed or a disk full
    at any moment leaves the older steps as they were.

    Args:
        directory: where the run's output lies; made at the first save.
        keep: how many of the latest steps stay, at least 1.

    Raises:
        ValueError: `keep` below 1.
    """

    def __init__(self, directory: str, *, keep: int = 2):
        if keep < 1:
            raise ValueError(f"keep is {keep}: at least 1 checkpoint has to stay")
        # orbax takes absolute paths only, and a later chdir must not move the run.
        self.directory = os.path.abspath(directory)
        self.keep = keep
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._damaged: set[int] = set()
        self._swept = False
        self._warned = False

    @property
    def latest(self) -> int | None:
        """The newest step that a resume can read, or None."""
        return max(self._steps(), default=None)

    @property
    def best(self) -> int | None:
        """The step with the lowest reported loss, or None where no save reported one."""
        return best_of(self._steps())

    def path(self, step: int) -> str:
        """Return the folder of `step`, whether or not it is there."""
        return str(self._folder(step))

    def source(self, step: int) -> str:
        """Return the folder that `restore` reads `step` from."""
        return self.path(step)

    def save(
        self,
        step: int,
        state: Any,
        saved: bytes | None,
        metrics: Mapping[str, float] | None = None,
        *,
        share: DataPartition | None = None,
    ) -> None:
        """Write `state` under `step`, in the background.

        Returns once the values are in host memory of their own, so a donated step may follow
        at once. A write that fails raises from `wait`, or from the next save.

        Args:
            step: the accepted microbatches so far, 0 or more.
            state: a `TrainState`, or a mapping of its fields.
            saved: the data iterator's position, or None.
            metrics: what to remember with the step; `loss` decides which step is best.
            share: the data share that read up to `saved`.

        Raises:
            ValueError: a position without its share, or a negative step.
            CheckpointFailed: the save before this one failed.
        """
        if saved is not None and share is None:
            raise ValueError("a data position needs the share that read it: pass share=")
        if not 0 <= step <= commit.LARGEST_STEP:
            raise ValueError(f"step {step} is outside 0 .. 2^63-1")
        self.wait()
        fields = fields_of(state)
        leaves = {path: host_copy(leaf) for path, leaf in leaves_of(state).items()}
        rows = position_rows(saved, share)
        kept = {name: float(value) for name, value in (metrics or {}).items()}
        description = Manifest(step, kept, shapes_of(leaves), _unset(fields), {})
        host_state = self._host_state(state, leaves)
        self._writer = threading.Thread(
            target=self._write, args=(description, leaves, rows, host_state), name="checkpoint"
        )
        self._writer.start()

    def stored(self, step: int | None = None) -> Variables:
        """Return what the checkpoint at `step` (the latest) holds, without reading its values.

        Returns:
            Field name to a tree of `jax.ShapeDtypeStruct` in nested dicts; None where unset.
        """
        manifest = read_manifest(self._folder(self._chosen(step)))
        return {**structs_of(manifest.leaves), **dict.fromkeys(manifest.unset)}

    def accumulation_template(self, step: int) -> Any:
        """Return the shapes of the pending accumulation window of `step`, or None."""
        return self.stored(step).get("accumulation")

    def restore(
        self,
        template: Any = None,
        step: int | None = None,
        *,
        share: DataPartition | None = None,
    ) -> tuple[Any, bytes | None]:
        """Return the state at `step` (the latest) and the data position of `share`.

        Every file is held to its sha256 first. When no step was asked for and the newest is
        damaged, the one before it is read, and one warning names both.

        Args:
            template: a `TrainState` of `jax.ShapeDtypeStruct`, which must name every leaf of
                the fields it sets, or a mapping, which may name some. A leaf's sharding, where
                set, is where its array is placed; without one it comes as a host array. None
                reads everything to the host, in nested dicts by field name.
            step: the step to read.
            share: whose data position to return; without one it is None.

        Raises:
            InputRefused: no such step, or leaves that differ from the template's in name, shape
                or dtype; all are listed.
            CheckpointDamaged: files that are not the ones written, and no older step to fall
                back to.
        """
        chosen = self._chosen(step)
        candidates = [chosen] if step is not None else sorted(self._steps(), reverse=True)
        damage: CheckpointDamaged | None = None
        for candidate in candidates:
            folder = self._folder(candidate)
            try:
                manifest = read_manifest(folder)
                check_files(folder, manifest)
            except CheckpointDamaged as error:
                self._damaged.add(candidate)
                damage = damage or error
                continue
            if damage is not None:
                warnings.warn(
                    f"checkpoint-{chosen} is damaged, going on from checkpoint-{candidate}. "
                    f"{damage}",
                    stacklevel=2,
                )
            position = position_of(read_data(folder), share) if share is not None else None
            return read_into(folder, manifest, template), position
        assert damage is not None
        raise damage

    def wait(self) -> None:
        """Block until the save under way is on disk.

        Raises:
            CheckpointFailed: it did not land.
        """
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _write_extra(self, step: int, state: Any, folder: Path) -> None:
        """Add files beside `dew/` before the checkpoint is committed; for subclasses.

        Called on the writer's thread. `state` has the shape of what was saved, on the host.
        """

    def _write(self, description: Manifest, leaves, rows, state) -> None:
        """Write one checkpoint; runs on a thread of its own, so its error waits for `wait`."""
        step, directory = description.step, Path(self.directory)
        aside = commit.aside_folder(directory, step)
        try:
            if not self._swept:
                commit.sweep(directory)
                self._swept = True
            commit.begin(aside)
            write_tree(aside, leaves, rows)
            self._write_extra(step, state, aside)
            self._describe(aside, description)
            commit.commit(aside, step)
            self._damaged.discard(step)
        except BaseException as error:
            self._failure = self._failed(step, aside, error)
            return
        try:
            self._retire()
        except OSError as error:
            self._failure = CheckpointFailed(
                f"checkpoint-{step} landed in {self.directory}, but older ones could not be "
                f"removed: {error}. Look at the folder's permissions and disk."
            )
            self._failure.__cause__ = error

    def _describe(self, aside: Path, description: Manifest) -> None:
        digests = {
            path.relative_to(aside).as_posix(): file_digest(path)
            for path in commit.files_under(aside)
        }
        whole = Manifest(
            description.step,
            description.metrics,
            description.leaves,
            description.unset,
            digests,
        )
        (aside / NAME).write_text(whole.text(), encoding="utf-8")

    def _retire(self) -> None:
        # A step found damaged counts as none of those that stay.
        damaged = self._damaged & set(self._committed())
        for step in [*expendable(self._steps(), self.keep), *damaged]:
            commit.remove(self._folder(step))

    def _failed(self, step: int, aside: Path, error: BaseException) -> CheckpointFailed:
        written = commit.bytes_under(aside)
        shutil.rmtree(aside, ignore_errors=True)
        # TensorStore adds its whole specification to its messages.
        cause = f"{type(error).__name__}: {error}".partition(" [tensorstore_spec=")[0]
        failure = CheckpointFailed(
            f"checkpoint-{step} did not land in {self.directory} ({written} bytes were written, "
            f"and removed): {cause[:LONGEST_CAUSE]}. Older checkpoints are as they were; "
            "free space or pass another directory, then start again."
        )
        failure.__cause__ = error
        return failure

    def _host_state(self, state: Any, leaves: Mapping[tuple[str, ...], np.ndarray]) -> Any:
        import jax

        treedef = jax.tree.structure(state)
        return jax.tree.unflatten(treedef, list(leaves.values()))

    def _folder(self, step: int) -> Path:
        return Path(self.directory) / commit.folder_name(step)

    def _steps(self) -> dict[int, Manifest]:
        """Return the steps that a resume can read."""
        return {step: m for step, m in self._committed().items() if step not in self._damaged}

    def _committed(self) -> dict[int, Manifest]:
        steps, odd = committed_steps(Path(self.directory))
        if odd and not self._warned:
            self._warned = True
            warn_of_odd(Path(self.directory), odd)
        return steps

    def _chosen(self, step: int | None) -> int:
        steps = self._steps() if step is None else self._committed()
        if step is None and steps:
            return max(steps)
        if step is None or step not in steps:
            raise InputRefused(
                f"{self.directory} holds no checkpoint{'' if step is None else f' of step {step}'}"
                f"; it holds steps {sorted(steps) or 'none'}."
            )
        return step


def _unset(fields: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name, value in fields.items() if value is None)
