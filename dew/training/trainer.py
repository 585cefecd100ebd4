"""`Trainer`: runs an objective over a dataset, from its start or its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import optax

from dew.artifacts.coordination import rank
from dew.checkpoints import Checkpoints
from dew.data import Dataset
from dew.errors import InputRefused
from dew.evaluation import Metric
from dew.evaluation.metric import check_names
from dew.objectives.base import Objective
from dew.placement import Layout, MeshSpec, Placement
from dew.tracking import Tracker
from dew.training.best import Best
from dew.training.compiled import CompiledStep, StepMemory, forward_backward_flops, memory_of
from dew.training.hang import HANG_SECONDS
from dew.training.loop import Loop
from dew.training.progress import Progress, Silent, default_progress
from dew.training.schedule import Schedule
from dew.training.signals import Signals
from dew.training.start import Beginning
from dew.training.state import TrainState
from dew.training.step import microstep
from dew.training.window import ProfileWindow
from dew.typing import Variables

Report = Callable[[Mapping[str, float], int], None]


@dataclass(frozen=True)
class StepPlan:
    """What a run would hold, found by compiling its step without any values.

    Attributes:
        state: the shapes of the state, frozen collections included.
        memory: bytes on the device during a step.
        compile_seconds: what compiling took.
    """

    state: TrainState
    memory: StepMemory
    compile_seconds: float


class Trainer:
    """Runs an objective: gradients, updates, averages, checkpoints, evaluation, the log.

    Building one allocates nothing and compiles nothing.

    Args:
        objective: the loss and what evaluation gives.
        optimizer: an optax transformation. Its schedules count updates, not microbatches.
        key: the run's key; every draw comes from it.
        mesh: how many devices each kind of parallelism takes; data parallelism the rest.
        layout: which axes of the parameters the mesh cuts.
        accumulation: microbatches an update. Their gradients and masses are added, so the
            update is that of one batch of all their rows.
        checkpoints: where to save, or None. `fit` borrows it.
        tracker: where scalars, records and previews go, or None. `fit` borrows it, and goes on
            with a warning if it fails.
        profile: which steps of a fit to trace, or None.
        hang_timeout: seconds that a process of a pool waits for one batch or step before it ends,
            and all the others with it.

    Raises:
        InputRefused: an accumulation below 1.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: optax.GradientTransformation,
        *,
        key: jax.Array,
        mesh: MeshSpec = MeshSpec(),  # noqa: B008 (frozen)
        layout: Layout = Layout(),  # noqa: B008 (frozen)
        accumulation: int = 1,
        checkpoints: Checkpoints | None = None,
        tracker: Tracker | None = None,
        profile: ProfileWindow | None = None,
        hang_timeout: float = HANG_SECONDS,
    ):
        if accumulation < 1:
            raise InputRefused(f"accumulation is {accumulation}; an update takes 1 or more batches")
        self.objective = objective
        self.optimizer = optimizer
        self.key = key
        self.placement = Placement.of(mesh, layout, objective.logical_axes())
        self.accumulation = accumulation
        self.checkpoints = checkpoints
        self.tracker = tracker
        self.profile = profile
        self.hang_timeout = hang_timeout
        self._beginning: Beginning | None = None
        self._compiled: CompiledStep | None = None

    def fit(
        self,
        dataset: Dataset,
        *,
        steps: int,
        log_every: int = 100,
        eval_every: int | None = None,
        checkpoint_every: int | None = None,
        metrics: Iterable[Metric[Any]] = (),
        preview: bool = False,
        best: Best | None = None,
        scored: Sequence[Mapping[str, float]] = (),
        variables: Variables | None = None,
        on_report: Report | None = None,
        progress: Progress | None = None,
    ) -> TrainState:
        """Train until `steps` microbatches are in, and return the state.

        With checkpoints, a run goes on from the last one, with the data that came next, and ends
        bit for bit as if it had never stopped; the final state is saved too. A file `save-now` in
        the checkpoints' directory asks for a save after the step at hand.

        Args:
            dataset: opens the training and validation batches.
            steps: the total of microbatches, those before a restart included.
            log_every: microbatches between two reports.
            eval_every: microbatches between two evaluations of `dataset.val`, which also runs at
                the end; None evaluates never.
            checkpoint_every: microbatches between two saves; None saves at the end only.
            metrics: what an evaluation scores.
            preview: whether an evaluation asks for something to look at, for the tracker.
            best: which evaluation's save stays as the best one, and when the run stops early; by
                default the one of the lowest validation loss, and never.
            scored: the scores of evaluations before a restart, in order, for `best`.
            variables: what to start from instead of drawing: copied, never written to. A resumed
                run reads only the collections from it that are frozen.
            on_report: called as `on_report(scalars, step)` with what the tracker gets.
            progress: how to show it; by default a live line on a terminal, else plain lines.

        Raises:
            InputRefused: options, data or a mesh that do not fit, before the first step.
            NonFinite: a loss or gradient that is not finite; nothing after it was saved.
            CheckpointFailed: a save did not land.
            Interrupted: SIGINT or SIGTERM came; the state was saved first.
        """
        schedule = Schedule(steps, log_every, eval_every, checkpoint_every)
        self._check(dataset, schedule, best)
        loop = Loop(
            trainer=self,
            dataset=dataset,
            schedule=schedule,
            metrics=check_names(metrics),
            preview=preview,
            best=best,
            scored=scored,
            on_report=on_report,
            progress=_shown_by(progress),
        )
        with Signals() as signals:
            return loop.run(variables, signals)

    def plan(self, batch: Mapping[str, Any], variables: Variables | None = None) -> StepPlan:
        """Compile the step from shapes alone and say what it will hold.

        Args:
            batch: one batch, or `jax.ShapeDtypeStruct` by field.
            variables: arrays or their shapes, as `fit` would take them.
        """
        state, frozen = self.beginning().shapes(variables)
        structs = {
            name: jax.ShapeDtypeStruct(field.shape, jax.dtypes.canonicalize_dtype(field.dtype))
            for name, field in batch.items()
        }
        state, frozen = self.placement.shaped((state, frozen))
        step = self.compiled_step()
        before = step.seconds
        executable = step.ready(state, frozen, structs)
        whole = replace(state, params={**state.params, **frozen})
        return StepPlan(whole, memory_of(executable), step.seconds - before)

    def beginning(self) -> Beginning:
        """Return what builds this trainer's first or restored state."""
        if self._beginning is None:
            self._beginning = Beginning(
                self.objective,
                self.optimizer,
                key=self.key,
                accumulation=self.accumulation,
                placement=self.placement,
            )
        return self._beginning

    def compiled_step(self) -> CompiledStep:
        """Return the step, whose executables serve every fit of this trainer."""
        if self._compiled is None:
            step = microstep(self.objective, self.optimizer, accumulation=self.accumulation)
            work = partial(forward_backward_flops, self.objective)
            self._compiled = CompiledStep(step, self.placement, work)
        return self._compiled

    def _check(self, dataset: Dataset, schedule: Schedule, best: Best | None) -> None:
        if schedule.eval_every is not None and dataset.val is None:
            raise InputRefused("eval_every is set and the dataset has no val; give it one")
        if best is not None and schedule.eval_every is None:
            raise InputRefused("best is set and eval_every is not: nothing would be scored")
        if schedule.checkpoint_every is not None and self.checkpoints is None:
            raise InputRefused(
                "checkpoint_every is set and the trainer has no checkpoints; build it with "
                "checkpoints=Checkpoints(directory)"
            )


def _shown_by(progress: Progress | None) -> Progress:
    """Return how a run is shown: on process 0 only."""
    if rank():
        return Silent()
    return progress if progress is not None else default_progress()
