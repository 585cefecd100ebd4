"""Where the curves of a run go beside its log: TensorBoard, Weights & Biases or MLflow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridges.finetune.log import RunLog
from bridges.finetune.plan import Plan
from bridges.finetune.progress import in_updates
from dew.artifacts.coordination import rank
from dew.cli.command import Settings
from dew.tracking import MLflowTracker, TensorBoardTracker, Tracker, Trackers, WandbTracker

RUNS = "runs"


class UpdateTracker:
    """A tracker whose steps are updates, and whose scores are called `eval/...`.

    Args:
        inner: what is told.
        accumulation: microbatches an update.
    """

    def __init__(self, inner: Any, accumulation: int) -> None:
        self._inner, self._accumulation = inner, accumulation
        self.on_disk = getattr(inner, "on_disk", False)

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Log the scalars of microbatch `step`."""
        named = {
            f"eval/{name[4:]}" if name.startswith("val/") else name: value
            for name, value in in_updates(scalars, self._accumulation).items()
        }
        self._inner.log(named, step // self._accumulation)

    def artifact(self, value: Any, step: int) -> None:
        """Hand over an artifact of microbatch `step`."""
        self._inner.artifact(value, step // self._accumulation)

    def close(self) -> None:
        """Close it."""
        self._inner.close()


def tracker_of(settings: Settings, folder: Path, name: str, log: RunLog, plan: Plan) -> Tracker:
    """Return the log, and beside it what `report_to` names.

    Args:
        settings: of `dew finetune`.
        folder: the run's.
        name: of the run.
        log: the run's log, which is told first.
        plan: its sizes.
    """
    asked = settings["report_to"]
    if asked == "none" or rank():
        return log
    project = os.environ.get("WANDB_PROJECT", "huggingface")
    builders = {
        "tensorboard": lambda: TensorBoardTracker(folder / RUNS),
        "wandb": lambda: WandbTracker(project, name, directory=folder),
        "mlflow": lambda: MLflowTracker(
            os.environ.get("MLFLOW_EXPERIMENT_NAME", "dew"),
            name,
            uri=os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlruns").absolute().as_uri(),
        ),
    }
    return Trackers(log, UpdateTracker(builders[asked](), plan.accumulation))
