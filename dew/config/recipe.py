"""How a configuration becomes a run: folder, record, checkpoints, tracker, trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from dew.artifacts import agreed
from dew.artifacts.coordination import rank
from dew.checkpoints import Checkpoints
from dew.config.run import RunConfig
from dew.config.run_folder import begin
from dew.data import Dataset
from dew.errors import InputRefused
from dew.objectives.base import Objective
from dew.registry import metrics
from dew.telemetry.records import RunRecord, package_versions
from dew.tracking import LocalTracker, Tracker, Trackers
from dew.training import Trainer, TrainState
from dew.training.reporting import Reporting

TRACKING = "tracking"


def train(
    config: RunConfig,
    objective: Objective,
    data: Dataset,
    *,
    name: str | None,
    tracker: Tracker | None,
    fit: Mapping[str, Any],
) -> TrainState:
    """Train as `RunConfig.train` says."""
    config = _named(config, name)
    settings, folder = config.trainer, folder_of(config)
    if data.batch != settings.batch_size:
        raise InputRefused(
            f"trainer.batch_size is {settings.batch_size} and the dataset gives {data.batch} rows "
            "a batch; make them equal"
        )
    record = RunRecord(str(settings.name), config.to_dict(), package_versions())
    checkpoints = Checkpoints(str(folder), keep=settings.keep)
    # The folder is this run's before its record is written.
    checkpoints.claim()
    try:
        agreed(
            "the run's record",
            lambda: begin(folder, record.config, record.versions) if rank() == 0 else None,
        )
        with LocalTracker(folder / TRACKING) as local:
            trackers = local if tracker is None else Trackers(local, tracker)
            if rank() == 0:
                _tell(trackers, record, folder)
            return _fit(config, objective, data, checkpoints, trackers, fit)
    finally:
        checkpoints.release()


def folder_of(config: RunConfig) -> Path:
    """Return the folder of a run.

    Raises:
        InputRefused: the run has no name.
    """
    if config.trainer.name is None:
        raise InputRefused("trainer.name is missing: a run's folder is called by it")
    return Path(config.trainer.checkpoint_dir).expanduser() / config.trainer.name


def _named(config: RunConfig, name: str | None) -> RunConfig:
    if name is None:
        return config
    return replace(config, trainer=replace(config.trainer, name=name))


def _fit(
    config: RunConfig,
    objective: Objective,
    data: Dataset,
    checkpoints: Checkpoints,
    tracker: Tracker,
    fit: Mapping[str, Any],
) -> TrainState:
    settings = config.trainer
    trainer = Trainer(
        objective,
        config.optim.build(settings.updates),
        key=jax.random.key(settings.seed),
        mesh=config.mesh,
        accumulation=settings.accumulation,
        checkpoints=checkpoints,
        tracker=tracker,
    )
    options = {
        "metrics": [metrics[each]() for each in settings.metrics],
        "preview": settings.preview,
        **fit,
    }
    return trainer.fit(
        data,
        steps=settings.steps,
        log_every=settings.log_every,
        eval_every=settings.eval_every,
        checkpoint_every=settings.checkpoint_every,
        **options,
    )


def _tell(tracker: Tracker, record: RunRecord, folder: Path) -> None:
    """Report the record as a fit reports: a tracker that fails or hangs stops no run."""
    reporting = Reporting(tracker, folder)
    try:
        reporting.artifact(record, 0)
    finally:
        reporting.close()
