"""`sweep`: one run for each point of a space, never twice, whatever stops it in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dew.artifacts import agreed, broadcast_from_process_zero
from dew.artifacts.coordination import rank
from dew.checkpoints.lock import Lock
from dew.config.ledger import FINISHED, Ledger, Trial
from dew.config.recipe import folder_of
from dew.config.run import RunConfig
from dew.config.search import (
    Search,
    Space,
    checked_space,
    grid_search,
    optuna_search,
    random_search,
)
from dew.config.values import ConfigRefused
from dew.errors import InputRefused, listed
from dew.telemetry.records import TrialFinished
from dew.tracking import Tracker
from dew.training.reporting import Reporting

__all__ = [
    "Search",
    "Space",
    "SweepFailed",
    "Trial",
    "grid_search",
    "optuna_search",
    "random_search",
    "sweep",
]

LONGEST_ERROR = 2000
MOVING = ("trainer", "trainer.name", "trainer.checkpoint_dir")


class SweepFailed(RuntimeError):
    """A sweep some of whose trials failed; all others were trained.

    Attributes:
        finished: the trials that did not.
        failed: those that did.
    """

    def __init__(self, finished: Sequence[Trial], failed: Sequence[Trial], ledger: Path):
        self.finished, self.failed = tuple(finished), tuple(failed)
        lines = [f"trial {each.number} {dict(each.overrides)}: {each.error}" for each in failed]
        super().__init__(
            listed(
                f"{len(failed)} trial(s) failed, {len(finished)} finished and are in {ledger}; "
                "the same sweep again trains the failed ones alone:",
                lines,
            )
        )


def sweep(
    config: RunConfig,
    space: Space,
    *,
    train: Callable[[RunConfig], float],
    trials: int,
    ledger: str | Path,
    tracker: Tracker | None = None,
    search: Search = random_search,
) -> tuple[Trial, ...]:
    """Train one run for each of `trials` points, and return the finished ones.

    Trial n is the configuration with its point laid over and the name `<trainer.name>/trial-<n>`,
    so a run and a folder of its own. Its point is in the ledger before it begins, and its score
    before it is reported. The same call again goes on with the trial that was stopped, at the
    same point and from its last checkpoint; finished trials are not trained again, failed ones
    are. One sweep at a time holds the folder `<checkpoint_dir>/<trainer.name>`.

    Args:
        config: what the points are laid over; it needs `trainer.name`.
        space: dotted paths into the configuration, and the values each can take.
        train: trains a configuration, by `RunConfig.train`, and returns its score. On a pool it
            is called on every process and returns the same score.
        trials: how many points in all, those of earlier calls included; a grid may have fewer.
        ledger: the file that remembers.
        tracker: gets `sweep/value` and a `TrialFinished` at each trial's number.
        search: `random_search`, `grid_search`, `optuna_search` or another `Search`.

    Returns:
        The finished trials in the order of their numbers.

    Raises:
        InputRefused: no name, a space that does not fit the configuration, the ledger of another
            sweep, or a folder in which another sweep is at work.
        SweepFailed: trials raised; the others were trained all the same.
    """
    points = _checked(config, space, trials)
    path = Path(ledger).expanduser()
    folder = folder_of(config)
    with _held(folder):
        book = _first("the ledger", lambda: Ledger(path, points, config.to_dict()))
        reporting = Reporting(None if rank() else tracker, folder)
        try:
            for number in range(trials):
                chosen = _shared("the next trial", lambda n=number: _next(book, search, points, n))
                if chosen is None:
                    break
                if chosen != "done":
                    trial = _train(book, config, number, chosen, train)
                    _report(reporting, trial)
        finally:
            reporting.close()
        known = _shared("the trials", lambda: _rows(book))
    finished, failed = ([Trial(*row) for row in rows] for rows in known)
    if failed:
        raise SweepFailed(finished, failed, path)
    if reporting.warned:
        raise reporting.warned
    return tuple(finished)


def _checked(config: RunConfig, space: Space, trials: int) -> dict[str, tuple[Any, ...]]:
    """Return the space once every value of it fits the configuration."""
    if config.trainer.name is None:
        raise InputRefused(
            "a sweep needs trainer.name: trials of one name would go on from each other's "
            "checkpoints"
        )
    if trials < 1:
        raise InputRefused(f"trials is {trials}; expected at least 1")
    points = checked_space(space)
    problems = [f"{path}: each trial has its own; take it out" for path in MOVING if path in points]
    for path, values in points.items():
        for value in values:
            try:
                config.override({path: value})
            except ConfigRefused as error:
                problems += [each for each in error.problems if each not in problems]
    if problems:
        raise InputRefused(listed("space: it does not fit the configuration:", problems))
    return points


@contextmanager
def _held(folder: Path) -> Any:
    """Hold the sweep's folder, so that a second sweep there is refused."""
    lock = _first("the sweep's folder", lambda: Lock(folder))
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _first(phase: str, work: Callable[[], Any]) -> Any:
    """Return `work()` on process 0 and None elsewhere; its error is raised on all."""
    return agreed(phase, work if rank() == 0 else lambda: None)


def _shared(phase: str, work: Callable[[], Any]) -> Any:
    """Return on every process what `work` gives on process 0."""
    return broadcast_from_process_zero(_first(phase, work))


def _next(book: Ledger, search: Search, points: Space, number: int) -> Any:
    """Return the point of a trial, "done" where it is finished, None where the space ends."""
    known = book[number]
    if known is not None:
        return "done" if known.status == FINISHED else dict(known.overrides)
    ended = sorted((*book.finished, *book.failed), key=lambda trial: trial.number)
    point = search(points, number, ended)
    if point is not None:
        book.begin(number, point)
    return point


def _train(
    book: Ledger | None,
    config: RunConfig,
    number: int,
    point: Mapping[str, Any],
    train: Callable[[RunConfig], float],
) -> Trial | None:
    """Train one trial and return it, once it is written down; None where the ledger is not."""
    try:
        run = config.override(point)
        name = f"{config.trainer.name}/trial-{number}"
        value = _score(train(replace(run, trainer=replace(run.trainer, name=name))))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
        return _first("a failed trial", lambda: book.fail(number, text) if book else None)
    return _first("a finished trial", lambda: book.finish(number, value) if book else None)


def _score(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"the trial's score is {value!a:.200}; train has to return a number"
        ) from None


def _report(reporting: Reporting, trial: Trial | None) -> None:
    """Report a trial. The ledger has it: a tracker that fails is no reason to stop."""
    if trial is None:
        return
    if trial.status == FINISHED:
        reporting.log({"sweep/value": trial.value}, trial.number)
    record = TrialFinished(trial.number, trial.value, dict(trial.overrides), trial.error)
    reporting.artifact(record, trial.number)


def _rows(book: Ledger) -> list[list[list[Any]]]:
    """Return the finished and the failed trials as JSON carries them."""
    return [
        [[t.number, dict(t.overrides), t.value, t.status, t.error] for t in trials]
        for trials in (book.finished, book.failed)
    ]
