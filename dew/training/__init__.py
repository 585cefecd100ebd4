"""Training: the state, the step, and the loop that runs it."""

from dew.evaluation import Evaluation, evaluate
from dew.placement import Layout, LayoutRefused, MeshSpec
from dew.tracking import (
    LocalTracker,
    MLflowTracker,
    TensorBoardTracker,
    Tracker,
    Trackers,
    WandbTracker,
)
from dew.training.nonfinite import NonFinite
from dew.training.reporting import TrackerWarning
from dew.training.signals import Interrupted
from dew.training.state import TrainState
from dew.training.trainer import Trainer
from dew.training.window import ProfileWindow

__all__ = [
    "Evaluation",
    "Interrupted",
    "Layout",
    "LayoutRefused",
    "LocalTracker",
    "MLflowTracker",
    "MeshSpec",
    "NonFinite",
    "ProfileWindow",
    "TensorBoardTracker",
    "Tracker",
    "TrackerWarning",
    "Trackers",
    "TrainState",
    "Trainer",
    "WandbTracker",
    "evaluate",
]
