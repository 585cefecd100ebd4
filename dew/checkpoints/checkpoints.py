"""`Checkpoints`: the checkpoints of one run, in one directory."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax

from dew.artifacts.agreement import Meetings, agreed
from dew.artifacts.coordination import rank
from dew.checkpoints import commit
from dew.checkpoints.commit import CheckpointFailed
from dew.checkpoints.leaves import Path as LeafPath
from dew.checkpoints.leaves import fields_of, leaves_of, outline_of
from dew.checkpoints.lock import Lock
from dew.checkpoints.manifest import CheckpointDamaged, Manifest, damage, read_manifest
from dew.checkpoints.meeting import agreed_values
from dew.checkpoints.placement import check_placement, placement_of
from dew.checkpoints.position import position_of, position_row
from dew.checkpoints.reading import READERS, Found, damage_of, find
from dew.checkpoints.saving import Save, write_local, write_shared
from dew.checkpoints.shards import HostLeaf, host_leaves, whole_box
from dew.checkpoints.steps import best_of, expendable, steps_of, warn_of_odd
from dew.checkpoints.template import read_into, shapes_of, structs_of, wanted_leaves
from dew.checkpoints.tree import read_data, read_tree
from dew.data import DataPartition
from dew.errors import InputRefused
from dew.typing import Variables

_rows = itertools.count()


class Checkpoints:
    """The checkpoints of one run, under `directory`/checkpoint-<step>.

    Building one touches no disk. Kept are the latest `keep` steps, for a resume, and the step
    whose save reported the lowest `metrics["loss"]`; a save that reported none is never best.

    A checkpoint is written aside, every file and folder is synced, a manifest records each
    file's sha256, and only then does the folder get its name. A process killed or a disk full
    at any moment leaves the older steps as they were.

    On a pool every process builds one with the same arguments, and all call the same members in
    the same order, `path`, `wait` and `release` apart. The directory is one that all share; each
    process writes the values that its devices hold, and a save that fails on one fails on all.

    Args:
        directory: where the run's output lies; made at the first save.
        keep: how many of the latest steps stay, at least 1.
        local_directory: a path on each host's own disk for one more checkpoint, the latest of
            `save_local`. It restores onto the placement that wrote it, and no other.
        local_every: how often `fit` writes it, in microbatches.

    Raises:
        ValueError: `keep` or `local_every` below 1, or `local_every` and no `local_directory`.
    """

    # The fields that `_write_extra` wants the values of, on a pool; None for all.
    _extra_fields: tuple[str, ...] | None = None

    def __init__(
        self,
        directory: str,
        *,
        keep: int = 2,
        local_directory: str | None = None,
        local_every: int | None = None,
    ):
        if keep < 1:
            raise ValueError(f"keep is {keep}: at least 1 checkpoint has to stay")
        if local_every is not None and local_every < 1:
            raise ValueError(f"local_every is {local_every}: it counts microbatches, from 1")
        if local_every is not None and local_directory is None:
            raise ValueError("local_every is set and local_directory is not: say where")
        # A later chdir must not move the run.
        self.directory = os.path.abspath(directory)
        self.keep = keep
        self.local_directory = None if local_directory is None else os.path.abspath(local_directory)
        self.local_every = local_every
        self._writer: threading.Thread | None = None
        self._meetings: Meetings | None = None
        self._failure: BaseException | None = None
        self._damaged: set[tuple[int, bool]] = set()
        self._lock: Lock | None = None
        self._claimed = False
        self._swept = False
        self._warned = False

    @property
    def local_path(self) -> str:
        """This process's own local directory.

        Raises:
            ValueError: there is no `local_directory`.
        """
        if self.local_directory is None:
            raise ValueError("these checkpoints have no local_directory")
        return os.path.join(self.local_directory, f"process-{rank()}")

    @property
    def latest(self) -> int | None:
        """The newest step that every process can read, local or persistent, or None."""
        return max(self._readable(None).steps, default=None)

    @property
    def best(self) -> int | None:
        """The step with the lowest reported loss, or None where no save reported one."""
        return best_of(self._readable(None).shared)

    def path(self, step: int) -> str:
        """Return the persistent folder of `step`, whether or not it is there."""
        return os.path.join(self.directory, commit.folder_name(step))

    def source(self, step: int) -> str:
        """Return the folder that `restore` reads `step` from.

        That is this process's local one where every process has that step, else the persistent
        one.
        """
        local = self.local_directory is not None and self._readable(None).local_step == step
        return str(self._folder(step, local))

    def claim(self) -> None:
        """Take the directory for this run, as the first save does.

        Process 0 puts a lock there; it stays until `release`, the end of this object or the end
        of the process.

        Raises:
            InputRefused: another run saves there; it is named, on every process.
            OSError: the lock could not be written.
        """
        if self._claimed:
            return

        def take() -> str | None:
            if rank() == 0:
                try:
                    self._lock = Lock(Path(self.directory))
                except InputRefused as error:
                    return str(error)
            return None

        refused = agreed_values(READERS, take)[0]
        if refused is not None:
            raise InputRefused(refused)
        self._claimed = True

    def release(self) -> None:
        """Give the directory free for other runs; the next save claims it again."""
        self._claimed = False
        if self._lock is not None:
            self._lock.release()
            self._lock = None

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

        Returns once the values that this process writes are in host memory of their own, so a
        donated step may follow at once. A write that fails raises from `wait`, or from the next
        save, on every process.

        Args:
            step: the accepted microbatches so far, 0 or more.
            state: a `TrainState`, or a mapping of its fields.
            saved: the data iterator's position on this process, or None.
            metrics: what to remember with the step; `loss` decides which step is best.
            share: the data share that read up to `saved`.

        Raises:
            ValueError: a position without its share, or a negative step.
            InputRefused: another run saves into this directory.
            CheckpointFailed: the save before this one failed.
        """
        kept = {name: float(value) for name, value in (metrics or {}).items()}
        ready, treedef = self._ready(step, state, saved, share, kept, local=False)
        sweep, self._swept = not self._swept, True
        meetings = self._row()

        def write() -> None:
            try:
                write_shared(
                    ready,
                    Path(self.directory),
                    meetings,
                    sweep=sweep,
                    extra=lambda aside: self._extra(ready, treedef, aside),
                    retire=self._retire,
                )
            except CheckpointFailed as error:
                self._swept = False
                raise error
            self._damaged.discard((step, False))

        self._begin(write)

    def save_local(
        self,
        step: int,
        state: Any,
        saved: bytes | None,
        *,
        share: DataPartition | None = None,
    ) -> None:
        """Write `state` under `step` to this process's local directory, in the background.

        It takes the place of the local step before it, once every process has it. The placement
        rides along: a resume onto another one is refused before anything is read.

        Args:
            step: the accepted microbatches so far, 0 or more.
            state: a `TrainState`, or a mapping of its fields.
            saved: the data iterator's position on this process, or None.
            share: the data share that read up to `saved`.

        Raises:
            ValueError: no `local_directory`, a position without its share, or a negative step.
            InputRefused: another run saves into this directory.
            CheckpointFailed: the save before this one failed.
        """
        folder = Path(self.local_path)
        ready, _ = self._ready(step, state, saved, share, {}, local=True)
        meetings = self._row()

        def write() -> None:
            write_local(ready, folder, meetings)
            self._damaged.discard((step, True))

        self._begin(write)

    def stored(self, step: int | None = None) -> Variables:
        """Return what the checkpoint at `step` (the latest) holds, without reading its values.

        Returns:
            Field name to a tree of `jax.ShapeDtypeStruct` in nested dicts; None where unset.
        """
        found = self._readable(step)
        chosen = self._chosen(step, found)
        manifest = found.local.get(chosen) or found.shared[chosen]
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

        Every file is held to its sha256 first; on a pool the processes share that work. When no
        step was asked for and the newest is damaged, the one before it is read on all, and one
        warning, on process 0, names both.

        Args:
            template: a `TrainState` of `jax.ShapeDtypeStruct`, which must name every leaf of
                the fields it sets, or a mapping, which may name some. A leaf's sharding, where
                set, is where its array is placed, and a process reads the values that its
                devices hold; without one the leaf comes whole, as a host array. None reads
                everything to the host, in nested dicts by field name.
            step: the step to read.
            share: whose data position to return; without one it is None.

        Raises:
            InputRefused: no such step, or leaves that differ from the template's in name, shape
                or dtype; all are listed. Or a local step that lay otherwise.
            CheckpointDamaged: files that are not the ones written, and no older step to fall
                back to.
            PeerFailure: reading failed on another process.
        """
        found = self._readable(step)
        newest = self._chosen(step, found)
        problem: CheckpointDamaged | None = None
        if step is None and found.broken and max(found.broken) > newest:
            newest = max(found.broken)
            problem = self._broken(newest)
        for candidate, local in self._candidates(step, found):
            folder = self._folder(candidate, local)
            manifest = (found.local if local else found.shared)[candidate]
            if local:
                agreed(
                    "placement of a local checkpoint", partial(_check, manifest, template, folder)
                )
            lines = damage_of(folder, manifest, own=local)
            if lines:
                self._damaged.add((candidate, local))
                problem = problem or damage(folder, lines, len(manifest.files))
                continue
            if problem is not None and rank() == 0:
                warnings.warn(
                    f"checkpoint-{newest} is damaged, going on from checkpoint-{candidate}. "
                    f"{problem}",
                    stacklevel=2,
                )
            return agreed(
                f"restore of checkpoint-{candidate}",
                lambda folder=folder, manifest=manifest: (
                    read_into(folder, manifest, template),
                    None if share is None else position_of(read_data(folder), share),
                ),
            )
        assert problem is not None
        raise problem

    def wait(self) -> None:
        """Block until the save under way is on disk, on every process.

        Raises:
            CheckpointFailed: it did not land; where a process of the pool failed, it is named.
        """
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _write_extra(self, step: int, state: Any, folder: Path) -> None:
        """Add files beside `dew/` before the checkpoint is committed; for subclasses.

        Called on the writer's thread of process 0. `state` has the shape of what was saved, on
        the host. On a pool its values are read back from `folder`, those of `_extra_fields` only;
        the others are `jax.ShapeDtypeStruct`.
        """

    def _ready(
        self,
        step: int,
        state: Any,
        saved: bytes | None,
        share: DataPartition | None,
        metrics: Mapping[str, float],
        *,
        local: bool,
    ) -> tuple[Save, Any]:
        """Return what to write, in host memory, and the state's structure."""
        if saved is not None and share is None:
            raise ValueError("a data position needs the share that read it: pass share=")
        if not 0 <= step <= commit.LARGEST_STEP:
            raise ValueError(f"step {step} is outside 0 .. 2^63-1")
        self.wait()
        error: BaseException | None = None
        try:
            self.claim()
        except InputRefused:
            raise
        except Exception as caught:
            error = caught
        fields, leaves = fields_of(state), leaves_of(state)
        copies: dict[LeafPath, HostLeaf] = {}
        try:
            copies = host_leaves(leaves, all_held=local)
        except Exception as caught:
            # The other processes' writers are on their way to meet this one's.
            error = error or caught
        placement = placement_of(leaves, self.directory) if local else None
        unset = tuple(name for name, value in fields.items() if value is None)
        description = Manifest(step, metrics, shapes_of(copies), unset, {}, placement)
        row = position_row(saved, share)
        save = Save(description, copies, outline_of(state), row, error)
        return save, jax.tree.structure(state)

    def _begin(self, write: Callable[[], None]) -> None:
        def run() -> None:
            try:
                write()
            except BaseException as error:
                self._failure = error

        self._writer = threading.Thread(target=run, name="checkpoint")
        self._writer.start()

    def _row(self) -> Meetings:
        # Numbered where all processes come by, so that the names are equal on all.
        if self._meetings is None:
            self._meetings = Meetings(f"checkpoints/{next(_rows)}")
        return self._meetings

    def _extra(self, save: Save, treedef: Any, aside: Path) -> None:
        if type(self)._write_extra is Checkpoints._write_extra:
            return
        stored = leaves_of(structs_of(save.description.leaves))
        wanted = self._extra_fields
        values: dict[LeafPath, Any] = {}
        for path, leaf in save.leaves.items():
            held = leaf.pieces[0] if len(leaf.pieces) == 1 else None
            if held is not None and held.box == whole_box(leaf.shape):
                values[path] = held.values
        spread = [path for path in stored if path not in values]
        chosen = [path for path in spread if wanted is None or path[0] in wanted]
        values |= read_tree(aside, stored, {path: stored[path] for path in chosen})
        leaves = [values.get(path, stored[path]) for path in save.leaves]
        self._write_extra(save.step, jax.tree.unflatten(treedef, leaves), aside)

    def _retire(self) -> None:
        # A step found damaged counts as none of those that stay.
        held = steps_of(Path(self.directory)).whole
        damaged = [step for step in held if (step, False) in self._damaged]
        whole = {step: m for step, m in held.items() if step not in damaged}
        for step in [*expendable(whole, self.keep), *damaged]:
            commit.remove(self._folder(step, False))

    def _folder(self, step: int, local: bool) -> Path:
        return Path(self.local_path if local else self.directory) / commit.folder_name(step)

    def _readable(self, step: int | None) -> Found:
        """Return the steps that a resume can read, and `step` though it be damaged.

        On a pool all processes call this.
        """
        local = None if self.local_directory is None else Path(self.local_path)
        found = find(Path(self.directory), local)
        if found.odd and not self._warned and rank() == 0:
            self._warned = True
            warn_of_odd(Path(self.directory), found.odd)
        return found.without({pair for pair in self._damaged if pair[0] != step})

    def _candidates(self, step: int | None, found: Found) -> list[tuple[int, bool]]:
        """Return the steps to try, newest first, each with whether it is the local one."""
        pairs = [(s, True) for s in found.local] + [(s, False) for s in found.shared]
        return sorted((pair for pair in pairs if step in (None, pair[0])), reverse=True)

    def _chosen(self, step: int | None, found: Found) -> int:
        if step is None and found.steps:
            return found.steps[-1]
        if step is not None and step in found.steps:
            return step
        broken = step if step is not None else max(found.broken, default=None)
        if broken in found.broken:
            raise self._broken(broken)
        raise InputRefused(
            f"{self.directory} holds no checkpoint{'' if step is None else f' of step {step}'}"
            f"; it holds steps {found.steps or 'none'}."
        )

    def _broken(self, step: int) -> CheckpointDamaged:
        folder = self._folder(step, False)
        try:
            read_manifest(folder)
        except CheckpointDamaged as error:
            return error
        return CheckpointDamaged(f"{folder}: its manifest changes while it is read")


def _check(manifest: Manifest, template: Any, folder: Path) -> None:
    check_placement(manifest.placement or {}, wanted_leaves(manifest, template), str(folder))
