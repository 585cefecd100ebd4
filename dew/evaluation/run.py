"""`evaluate`: one pass over finite batches, without an optimizer and without a tracker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.artifacts import (
    Artifacts,
    agree_process_phase,
    agreed,
    broadcast_from_process_zero,
    collective_host,
)
from dew.artifacts.coordination import pool_size, pooled, rank
from dew.data import DataPartition
from dew.errors import InputRefused
from dew.evaluation.metric import Metric, check_names
from dew.objectives.base import Objective, Step
from dew.placement import Layout, MeshSpec, Placement
from dew.typing import Batch, Variables

# The two random streams of an event: scoring draws do not move when previews are switched on.
_SCORING, _PREVIEW = 0, 1


@dataclass(frozen=True)
class Evaluation:
    """One evaluation event.

    Attributes:
        step: the training step of the variables.
        split: which data, `val` by default.
        scores: `{"val/name": score}`; empty where there was no batch or no metric.
        coordinated_batches: batches that every process had.
        records: rows in them.
        uneven_shards: whether some process had more batches than that.
        event_key: the key that all draws of this event come from.
        elapsed_seconds: wall time.
        previews: what a tracker may draw, on the host.
    """

    step: int
    split: str
    scores: dict[str, float]
    coordinated_batches: int
    records: int
    uneven_shards: bool
    event_key: jax.Array
    elapsed_seconds: float
    previews: tuple[Any, ...] = field(default=())


def evaluate(
    objective: Objective,
    variables: Variables,
    batches: Callable[[DataPartition], Iterable[Batch]] | Iterable[Batch],
    *,
    key: jax.Array,
    metrics: Iterable[Metric[Any]] = (),
    step: int = 0,
    averaged: Variables | None = None,
    preview: bool = False,
    mesh: MeshSpec | None = None,
    layout: Layout = Layout(),  # noqa: B008 (frozen)
    split: str = "val",
) -> Evaluation:
    """Score `variables` on finite batches.

    Args:
        objective: its `evaluate` gives what the metrics read; it runs jitted.
        variables: `{"params": ..., other collections}`.
        batches: an iterable, or what opens one for a data partition. One that was opened here
            is closed here.
        key: the run's key; the event's is this one folded with `step`.
        metrics: what to score, of unlike names. Without any, nothing is scored.
        step: the training step of the variables.
        averaged: the variables with averaged leaves, for objectives that read them.
        preview: whether to ask the objective for something to look at, from the first batch.
        mesh: where to place variables and batches; None leaves them where they are, and on a
            pool spreads the batch over all devices.
        layout: which axes of the parameters the mesh cuts.
        split: the prefix of the scores' names.

    Raises:
        InputRefused: two metrics of one name, or one whose artifact the objective does not give.
        ValueError: a metric that found nothing to score in a pass with batches.
    """
    started = time.perf_counter()
    chosen = check_names(metrics)
    event_key = jax.random.fold_in(key, step)
    scoring = jax.random.fold_in(event_key, _SCORING)
    placement = _placement(objective, mesh, layout)
    given = {"variables": variables, "averaged": averaged}
    placed = given if placement is None else placement.put(given)
    score = partial(_score, _ByIdentity(objective), placement, placed["variables"])
    totals: dict[str, Any] = {}
    records = 0
    first: tuple[Any, Artifacts | None] | None = None
    coordinated = _Coordinated()
    with _opened(batches, placement) as iterator:
        for index, rows in enumerate(coordinated.prefix(iterator)):
            batch = rows if placement is None else placement.batch(rows)
            records += _rows(batch)
            scored = None
            if chosen:
                key_here = jax.random.fold_in(scoring, index)
                told = Step(jnp.int32(step), key_here, placed["averaged"])
                scored = score(dict(batch), told)
                home = _home((scored, batch if pooled() else rows))
                # On the first process alone; the others hear there if it fails.
                agreed("scoring", partial(_merge, totals, chosen, home))
            first = first or (batch, scored)
    previews: tuple[Any, ...] = ()
    if preview and first is not None:
        told = Step(jnp.int32(step), jax.random.fold_in(event_key, _PREVIEW), placed["averaged"])
        shown, scored = first
        look = partial(objective.preview, placed["variables"], shown, told, scored=scored)
        previews = _each(_home(agreed("preview", look)))

    def finalized() -> dict[str, float]:
        kept = chosen if coordinated.count and rank() == 0 else ()
        return {f"{split}/{m.name}": float(m.finalize(totals[m.name])) for m in kept}

    scores = broadcast_from_process_zero(agreed("scores", finalized)) if pooled() else finalized()
    return Evaluation(
        step=step,
        split=split,
        scores=scores,
        coordinated_batches=coordinated.count,
        records=records,
        uneven_shards=coordinated.uneven,
        event_key=event_key,
        elapsed_seconds=time.perf_counter() - started,
        previews=previews,
    )


class _Coordinated:
    """The batches that every process has: the pass ends where the first of them ends.

    Attributes:
        count: batches so far.
        uneven: whether some process had more.
    """

    def __init__(self) -> None:
        self.count = 0
        self.uneven = False

    def prefix(self, iterator: Iterator[Batch]) -> Iterator[Batch]:
        """Yield batches for as long as every process has one."""
        while True:
            batch: Batch | None = None
            error: BaseException | None = None
            try:
                batch = next(iterator, None)
            except Exception as caught:
                error = caught
            have = agree_process_phase(error, phase="evaluation batch", available=batch is not None)
            self.uneven = 0 < have < pool_size()
            if batch is None or have < pool_size():
                return
            self.count += 1
            yield batch


def _placement(objective: Objective, mesh: MeshSpec | None, layout: Layout) -> Placement | None:
    if mesh is None and not pooled():
        return None
    return Placement.of(mesh or MeshSpec(), layout, objective.logical_axes())


def _home(tree: Any) -> Any:
    """Return a tree on the host of process 0, and None elsewhere."""
    return collective_host(tree, phase="evaluation", held_by="first")


class _ByIdentity:
    """An objective as a static argument of `jit`, which compares it by identity."""

    def __init__(self, objective: Objective):
        self.objective = objective

    def __hash__(self) -> int:
        return id(self.objective)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.objective is self.objective


@partial(jax.jit, static_argnums=(0, 1))
def _score(
    same: _ByIdentity, placement: Placement | None, variables: Variables, batch: Any, step: Step
) -> Any:
    evaluate = same.objective.evaluate
    return (evaluate if placement is None else placement.traced(evaluate))(variables, batch, step)


@contextmanager
def _opened(batches: Any, placement: Placement | None) -> Iterator[Iterator[Batch]]:
    if not callable(batches):
        yield iter(batches)
        return
    opened: Any = batches(DataPartition() if placement is None else placement.share)
    try:
        yield iter(opened)
    finally:
        close = getattr(opened, "close", None)
        if close is not None:
            close()


def _merge(
    totals: dict[str, Any],
    metrics: tuple[Metric[Any], ...],
    home: tuple[Artifacts | None, Mapping[str, np.ndarray]] | None,
) -> None:
    if home is None:
        return
    artifacts, batch = home
    # A metric that computes on a device does so on one of this process, whatever the mesh.
    with jax.default_device(jax.local_devices()[0]):
        for metric in metrics:
            part = metric(_read(metric, artifacts), batch)
            known = metric.name in totals
            totals[metric.name] = metric.merge(totals[metric.name], part) if known else part


def _read(metric: Metric[Any], artifacts: Artifacts | None) -> Any:
    given = _each(artifacts)
    for artifact in given:
        if isinstance(artifact, metric.reads):
            return artifact
    names = ", ".join(type(artifact).__name__ for artifact in given) or "nothing"
    raise InputRefused(
        f"metric {metric.name!r} reads {metric.reads.__name__}; the objective evaluates to "
        f"{names}. Choose a metric that reads one of these."
    )


def _each(artifacts: Artifacts | None) -> tuple[Any, ...]:
    if artifacts is None:
        return ()
    return artifacts if isinstance(artifacts, tuple) else (artifacts,)


def _rows(batch: Mapping[str, Any]) -> int:
    return max((np.shape(value)[0] for value in batch.values() if np.ndim(value)), default=0)
