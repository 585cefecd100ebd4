"""Training: the state, the step, and the loop that runs it."""

from dew.evaluation import Evaluation, evaluate
from dew.placement import Layout, LayoutRefused, MeshSpec
from dew.tracking import LocalTracker, Tracker, Trackers
from dew.training.nonfinite import NonFinite
from dew.training.signals import Interrupted
from dew.training.state import TrainState
from dew.training.trainer import Trainer

__all__ = [
    "Evaluation",
    "Interrupted",
    "Layout",
    "LayoutRefused",
    "LocalTracker",
    "MeshSpec",
    "NonFinite",
    "Tracker",
    "Trackers",
    "TrainState",
    "Trainer",
    "evaluate",
]
