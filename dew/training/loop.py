"""The loop of one `fit`: feed, step, settle, report, evaluate, save, stop."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from dew.artifacts import broadcast_from_process_zero
from dew.artifacts.coordination import pool_size, pooled, rank
from dew.data import DataPartition, Dataset
from dew.errors import InputRefused
from dew.evaluation import Evaluation, Metric, evaluate
from dew.telemetry.records import (
    COMPLETED,
    FAILED,
    INTERRUPTED,
    CheckpointRequested,
    FitEnded,
    FitStarted,
    Record,
)
from dew.training.best import Best
from dew.training.hang import HangWatch
from dew.training.meter import Meter
from dew.training.nonfinite import nonfinite_error
from dew.training.prefetch import Fed, Prefetch
from dew.training.progress import Progress
from dew.training.replicas import check_replicas
from dew.training.reporting import Reporting
from dew.training.schedule import Schedule, due
from dew.training.signals import Interrupted, Signals, StopRequested
from dew.training.start import key_words
from dew.training.state import TrainState, laid_over
from dew.training.steering import Steering
from dew.training.step import flush
from dew.training.window import OpenWindow

AHEAD = 2
"""Steps that may be queued on the device. More gains nothing, and on CPU some forty deadlock."""

SAVE_NOW = "save-now"
"""A file of this name in the checkpoints' directory asks a run to save after its next step."""


class Loop:
    """One fit under way; see `Trainer.fit` for what the arguments mean."""

    def __init__(
        self,
        *,
        trainer: Any,
        dataset: Dataset,
        schedule: Schedule,
        metrics: tuple[Metric[Any], ...],
        preview: bool,
        best: Best | None,
        scored: Sequence[Mapping[str, float]],
        on_report: Callable[..., None] | None,
        progress: Progress,
    ):
        self.trainer = trainer
        self.dataset = dataset
        self.schedule = schedule
        self.metrics = metrics
        self.preview = preview
        self.best = best
        ranks = [] if best is None else [best.rank(scores) for scores in scored]
        self.ranks = [rank for rank in ranks if rank is not None]
        self.stopped = False
        self.on_report = on_report
        self.progress = progress
        self.placement = trainer.placement
        self.share = DataPartition()
        # Every process trains; the first one tells.
        self.reporting = Reporting(
            None if rank() else trainer.tracker,
            None if trainer.checkpoints is None else trainer.checkpoints.directory,
        )
        self.meter = Meter()
        self.since_save = Meter()
        self.unsettled: deque[tuple[int, Fed, dict[str, Any]]] = deque()
        self.position: bytes | None = None
        self.saved_step: int | None = None
        self.compile_seconds = 0.0
        self.scores: tuple[int, dict[str, float]] = (-1, {})
        self.step = 0
        self.announced = False
        self.window = OpenWindow(None if rank() else trainer.profile, tell=self._record)

    def run(self, variables: Any, signals: Signals) -> TrainState:
        """Train to the end and return the state."""
        self.signals = signals
        self.steering = Steering(AHEAD + 2)
        self.hang = HangWatch(self.trainer.hang_timeout)
        self.share = self.placement.share
        started = time.perf_counter()
        try:
            state = self._begin(variables)
            first = self.step = int(state.step)
            self._announce(state)
            feed = Prefetch(
                self._open(first),
                limit=max(0, self.schedule.steps - first),
                place=self.placement.batch,
            )
        except BaseException as error:
            self._conclude(error, started)
            self._let_go()
            raise
        try:
            self.progress.start(first, self.schedule.steps)
            state = self._steps(state, feed)
            state = self._end(state)
        except BaseException as error:
            self._conclude(error, started)
            self._clean(feed, error)
            raise
        self._conclude(None, started)
        self._clean(feed, self.reporting.warned)
        return replace(state, params={**state.params, **self.frozen})

    def _announce(self, state: TrainState) -> None:
        """Report that the fit begins, and settle whether its evaluations are to be looked at."""
        wanted = self.preview and self.reporting.previews
        self.preview = broadcast_from_process_zero(wanted) if pooled() else wanted
        self.announced = True
        self._record(
            FitStarted(
                first_step=self.step,
                steps=self.schedule.steps,
                parameters=sum(leaf.size for leaf in jax.tree.leaves(state.params["params"])),
                processes=pool_size(),
                devices=jax.device_count(),
                device_kind=jax.devices()[0].device_kind,
            )
        )

    def _conclude(self, error: BaseException | None, started: float) -> None:
        """Report how the fit ended; what fails here never hides `error`."""
        if not self.announced:
            return
        status = COMPLETED if error is None else FAILED
        if isinstance(error, Interrupted | KeyboardInterrupt):
            status = INTERRUPTED
        text = "" if error is None else f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - started
        try:
            self.window.cut()
            self._record(FitEnded(status=status, error=text, seconds=seconds))
            self.reporting.close(at_once=error is not None)
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"reporting the end failed too: {failure}")

    def _record(self, record: Record) -> None:
        """Hand a record to the tracker, for the step at hand."""
        self.reporting.artifact(record, self.step)

    def _begin(self, variables: Any) -> TrainState:
        beginning, checkpoints = self.trainer.beginning(), self.trainer.checkpoints
        if checkpoints is not None:
            checkpoints.claim()
        if checkpoints is None or checkpoints.latest is None:
            state, self.frozen = beginning.fresh(variables)
            return state
        state, self.frozen, self.position = beginning.restored(checkpoints, variables, self.share)
        self.saved_step = int(state.step)
        return state

    def _open(self, first: int) -> Iterator[Any]:
        iterator = iter(self.dataset.train(self.share))
        try:
            self._place(iterator, first)
        except BaseException:
            _close(iterator)
            raise
        return iterator

    def _place(self, iterator: Any, first: int) -> None:
        resumable = hasattr(iterator, "get_state") and hasattr(iterator, "set_state")
        if self.schedule.checkpoint_every is not None and not resumable:
            raise InputRefused(
                f"checkpoint_every is set and the training iterator ({type(iterator).__name__}) "
                "has no get_state and set_state, so no checkpoint could say where the data was. "
                "Give it both, or leave checkpoint_every out."
            )
        if self.position is not None:
            if not resumable:
                raise InputRefused(
                    "the checkpoint holds a data position and the training iterator "
                    f"({type(iterator).__name__}) has no set_state to go on from it."
                )
            iterator.set_state(self.position)
        elif 0 < first < self.schedule.steps:
            warnings.warn(
                f"the checkpoint of step {first} holds no data position: the data starts anew.",
                stacklevel=6,
            )

    def _steps(self, state: TrainState, feed: Prefetch) -> TrainState:
        self.meter.reset()
        for step in range(self.step + 1, self.schedule.steps + 1):
            self._steer(state, step - 1)
            fed = self._next(feed, state, step)
            executable = self._executable(state, fed)
            state, report = executable(state, self.frozen, fed.batch)
            self.position = fed.position
            self.step = step
            self.unsettled.append((step, fed, report))
            self._settle(state, AHEAD)
            self._watch(state)
            if step < self.schedule.steps:
                self._between(state, step)
            if self.stopped:
                break
        return state

    def _watch(self, state: TrainState) -> None:
        """Begin or end the profiler's window after a step."""
        started = time.perf_counter()
        if self.window.after_step(lambda: self._settle(state, 0)):
            self._pause(time.perf_counter() - started)

    def _steer(self, state: TrainState, step: int) -> None:
        """Stop or save where one process was asked to, all after the same step."""
        self.steering.steer(step, self.signals.number, wish=self._asked_to_save())
        if self.steering.stop_after == step:
            self._leave(state, step)
        if self.steering.saves_after(step):
            self._save(state, step)

    def _check(self) -> None:
        """Leave work between two steps if a signal came; on a pool the next step hears it."""
        if not pooled():
            self.signals.check()

    def _between(self, state: TrainState, step: int) -> None:
        """Do what is due after a step that is not the last."""
        if due(self.schedule.log_every, step):
            self._report(state, step)
        if due(self.schedule.eval_every, step):
            self._evaluate(state, step)
        if due(self.schedule.checkpoint_every, step):
            self._save(state, step)
        elif self.trainer.checkpoints and due(self.trainer.checkpoints.local_every, step):
            self._save_local(state, step)

    def _end(self, state: TrainState) -> TrainState:
        step = int(state.step)
        self.window.end(lambda: self._settle(state, 0))
        if self.unsettled or self.meter.steps:
            self._report(state, step)
        if state.accumulation is not None and int(state.accumulation.count):
            places = self.placement.shardings(state)
            last = flush(self.trainer.objective, self.trainer.optimizer)
            state = jax.jit(last, out_shardings=places)(state)
            self.saved_step = None
        if self.schedule.eval_every is not None and not self.stopped:
            self._evaluate(state, step)
        if self.trainer.checkpoints is not None:
            self._save(state, step)
            self.trainer.checkpoints.wait()
        return state

    def _next(self, feed: Prefetch, state: TrainState, step: int) -> Fed:
        feed.tell({**state.params, **self.frozen}, step - 1)
        try:
            with self.hang.over(f"the batch of step {step}"):
                return feed.next(self._check)
        except StopIteration:
            raise InputRefused(
                f"the training data ended before step {step} of {self.schedule.steps}; give an "
                "iterator that goes on, or fewer steps."
            ) from None
        except StopRequested:
            self._leave(state, step - 1)
            raise

    def _executable(self, state: TrainState, fed: Fed) -> Any:
        compiled = self.trainer.compiled_step()
        if not compiled.knows(fed.batch):
            if self.trainer.objective.inputs is not None:
                self.trainer.objective.inputs.check(fed.batch)
            self.progress.phase("compiling (first time)")
            before = compiled.seconds
            try:
                compiled.ready(
                    state,
                    self.frozen,
                    fed.batch,
                    meant=self.dataset.varies,
                    while_waiting=self._check,
                )
            except StopRequested:
                self._leave(state, self.step)
                raise
            self.compile_seconds += compiled.seconds - before
            self._pause(compiled.seconds - before)
        return compiled.ready(state, self.frozen, fed.batch)

    def _settle(self, state: TrainState, ahead: int) -> None:
        """Read the reports of all but the last `ahead` steps, waiting for the device."""
        while len(self.unsettled) > ahead:
            step, fed, report = self.unsettled.popleft()
            with self.hang.over(f"step {step}"):
                report = jax.device_get(report)
            if not report["finite"]:
                raise nonfinite_error(
                    self.trainer.objective,
                    state,
                    self.frozen,
                    fed.batch,
                    step=step,
                    report=report,
                )
            self.meter.add(report, self.trainer.compiled_step().flops(fed.batch), fed.waited)
            self.since_save.add(report)
            self.progress.advance(step, self.meter.loss, self.meter.mass_per_second)

    def _report(self, state: TrainState, step: int) -> None:
        self._settle(state, 0)
        scalars = self.meter.scalars()
        if self.dataset.records:
            scalars["train/epoch"] = step * self.dataset.batch / self.dataset.records
        if self.compile_seconds:
            scalars["train/compile_seconds"] = self.compile_seconds
            self.compile_seconds = 0.0
        self._log(scalars, step)
        self.meter.reset()

    def _log(self, scalars: dict[str, float], step: int, note: str = "") -> None:
        started = time.perf_counter()
        self.progress.report(scalars, step, note)
        self.reporting.log(scalars, step)
        if self.on_report is not None:
            self.on_report(scalars, step)
        self._pause(time.perf_counter() - started)

    def _evaluate(self, state: TrainState, step: int) -> None:
        self._settle(state, 0)
        started = time.perf_counter()
        self.progress.phase("evaluating")
        variables = {**state.params, **self.frozen}
        try:
            event = evaluate(
                self.trainer.objective,
                variables,
                self._watched,
                key=self.trainer.key,
                metrics=self.metrics,
                step=step,
                averaged=None if state.ema is None else laid_over(variables, state.ema),
                preview=self.preview,
                mesh=self.placement.spec,
                layout=self.placement.layout,
            )
        except StopRequested:
            self._leave(state, step)
            raise
        self.scores = (step, event.scores)
        if self.best is not None and (found := self.best.rank(event.scores)) is not None:
            self.ranks.append(found)
            self.stopped = self.best.exhausted(self.ranks)
        self._pause(time.perf_counter() - started)
        self._log(_scalars_of(event), step, f"event key {_key_text(event.event_key)}")
        started = time.perf_counter()
        for value in event.previews:
            self.reporting.artifact(value, step)
        self._pause(time.perf_counter() - started)

    def _watched(self, share: DataPartition) -> Iterator[Any]:
        """Yield the validation batches for as long as no signal came."""
        assert self.dataset.val is not None
        iterator = iter(self.dataset.val(share))
        try:
            for batch in iterator:
                self._check()
                yield batch
        finally:
            _close(iterator)

    def _save(self, state: TrainState, step: int) -> None:
        if self.saved_step == step:
            return
        self._settle(state, 0)
        started = time.perf_counter()
        self.progress.phase("saving")
        check_replicas(state)
        share = None if self.position is None else self.share
        metrics = self._save_metrics(step)
        self.trainer.checkpoints.save(step, state, self.position, metrics, share=share)
        self._record(CheckpointRequested(self.trainer.checkpoints.path(step), metrics))
        self.saved_step = step
        self.since_save.reset()
        self._pause(time.perf_counter() - started)

    def _save_local(self, state: TrainState, step: int) -> None:
        """Write this process's parts to its own disk."""
        self._settle(state, 0)
        started = time.perf_counter()
        share = None if self.position is None else self.share
        self.trainer.checkpoints.save_local(step, state, self.position, share=share)
        self._record(CheckpointRequested(self.trainer.checkpoints.local_path))
        self._pause(time.perf_counter() - started)

    def _asked_to_save(self) -> bool:
        """Take away the file that asks for a save, and tell whether it was there."""
        if self.trainer.checkpoints is None or rank():
            return False
        try:
            os.unlink(os.path.join(self.trainer.checkpoints.directory, SAVE_NOW))
        except FileNotFoundError:
            return False
        return True

    def _save_metrics(self, step: int) -> dict[str, float]:
        """Return the scores of this step, and the loss that decides which save is best.

        That is the validation loss where the run measures one, so at evaluated steps only, and
        else the training loss since the last save: the two are not compared with each other.
        """
        scores = self.scores[1] if self.scores[0] == step else {}
        if self.best is not None:
            found = self.best.rank(scores)
            return {**scores, **({} if found is None else {"loss": found})}
        measured = self.schedule.eval_every is not None and bool(self.metrics)
        if not measured:
            return {"loss": self.since_save.loss} if self.since_save.steps else {}
        perplexity = scores.get("val/perplexity", 0.0)
        return {**scores, **({"loss": math.log(perplexity)} if perplexity > 0 else {})}

    def _leave(self, state: TrainState, step: int) -> None:
        """Save and raise: a signal asked the run to end."""
        number = self.signals.number if self.steering.number is None else self.steering.number
        assert number is not None
        checkpoints = self.trainer.checkpoints
        self._settle(state, 0)
        if checkpoints is not None:
            self._save(state, step)
            checkpoints.wait()
        saved = None if checkpoints is None else checkpoints.path(step)
        raise Interrupted(number, step=step, saved=saved)

    def _pause(self, seconds: float) -> None:
        self.meter.pause(seconds)
        self.since_save.pause(seconds)

    def _let_go(self) -> None:
        """Stop watching, and leave the checkpoints' directory to other runs."""
        self.hang.close()
        if self.trainer.checkpoints is not None:
            self.trainer.checkpoints.release()

    def _clean(self, feed: Prefetch, error: BaseException | None) -> None:
        """Close what this fit opened; a failure here never hides the first one."""
        closers = [feed.close, self.progress.close]
        if self.trainer.checkpoints is not None and not isinstance(error, KeyboardInterrupt):
            closers.append(self.trainer.checkpoints.wait)
        closers.append(self._let_go)
        for close in closers:
            try:
                close()
            except Exception as failure:
                if error is None:
                    error = failure
                    continue
                error.add_note(f"cleaning up failed too: {type(failure).__name__}: {failure}")
        if error is not None and sys.exception() is None:
            raise error


def _scalars_of(event: Evaluation) -> dict[str, float]:
    return {
        **event.scores,
        "evaluation/coordinated_batches": event.coordinated_batches,
        "evaluation/records": event.records,
        "evaluation/uneven_shards": float(event.uneven_shards),
    }


def _key_text(key: jax.Array) -> str:
    return ":".join(f"{word:08x}" for word in np.asarray(key_words(key)).ravel())


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
