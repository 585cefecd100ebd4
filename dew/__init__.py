"""Any PyTorch checkpoint on JAX, with proof.

Every name below is looked up when it is first used, so that `import dew` opens no backend and
loads neither jax nor torch.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from dew.artifacts import ImageGrid, Representations, TextSamples, TokenScores, VideoGrid
    from dew.checkpoints import Checkpoints
    from dew.cli.finetuning import Run, finetune
    from dew.data import DataPartition, Dataset
    from dew.errors import InputRefused
    from dew.evaluation.run import Evaluation, evaluate
    from dew.inference.bundle import Bundle
    from dew.inference.tasks import pipeline
    from dew.inputs import Field, InputSpec
    from dew.objectives.base import Aux, EMASpec, Objective, Ratio, Step
    from dew.registry import datasets, encoders, metrics, models
    from dew.telemetry.profile import profile
    from dew.tracking import (
        LocalTracker,
        MLflowTracker,
        TensorBoardTracker,
        Tracker,
        Trackers,
        WandbTracker,
    )
    from dew.training import Layout, MeshSpec, ProfileWindow, Trainer, TrainState

_EXPORTS = {
    "Aux": "dew.objectives.base",
    "Bundle": "dew.inference.bundle",
    "Checkpoints": "dew.checkpoints",
    "DataPartition": "dew.data",
    "Dataset": "dew.data",
    "EMASpec": "dew.objectives.base",
    "Evaluation": "dew.evaluation.run",
    "Field": "dew.inputs",
    "ImageGrid": "dew.artifacts",
    "InputRefused": "dew.errors",
    "InputSpec": "dew.inputs",
    "Layout": "dew.training",
    "LocalTracker": "dew.tracking",
    "MLflowTracker": "dew.tracking",
    "MeshSpec": "dew.training",
    "Objective": "dew.objectives.base",
    "ProfileWindow": "dew.training",
    "Ratio": "dew.objectives.base",
    "Representations": "dew.artifacts",
    "Run": "dew.cli.finetuning",
    "Step": "dew.objectives.base",
    "TensorBoardTracker": "dew.tracking",
    "TextSamples": "dew.artifacts",
    "TokenScores": "dew.artifacts",
    "Tracker": "dew.tracking",
    "Trackers": "dew.tracking",
    "TrainState": "dew.training",
    "Trainer": "dew.training",
    "VideoGrid": "dew.artifacts",
    "WandbTracker": "dew.tracking",
    "datasets": "dew.registry",
    "encoders": "dew.registry",
    "evaluate": "dew.evaluation.run",
    "finetune": "dew.cli.finetuning",
    "metrics": "dew.registry",
    "models": "dew.registry",
    "pipeline": "dew.inference.tasks",
    "profile": "dew.telemetry.profile",
}

__all__ = [
    "Aux",
    "Bundle",
    "Checkpoints",
    "DataPartition",
    "Dataset",
    "EMASpec",
    "Evaluation",
    "Field",
    "ImageGrid",
    "InputRefused",
    "InputSpec",
    "Layout",
    "LocalTracker",
    "MLflowTracker",
    "MeshSpec",
    "Objective",
    "ProfileWindow",
    "Ratio",
    "Representations",
    "Run",
    "Step",
    "TensorBoardTracker",
    "TextSamples",
    "TokenScores",
    "Tracker",
    "Trackers",
    "TrainState",
    "Trainer",
    "VideoGrid",
    "WandbTracker",
    "datasets",
    "encoders",
    "evaluate",
    "finetune",
    "metrics",
    "models",
    "pipeline",
    "profile",
]


def __getattr__(name: str) -> _Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'dew' has no attribute {name!r}")
    value = getattr(_import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
