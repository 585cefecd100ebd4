"""Training: the state, the step, and the loop that runs it."""

from dew.evaluation import Evaluation, evaluate
from dew.tracking import LocalTracker, Tracker, Trackers
from dew.training.nonfinite import NonFinite
from dew.training.signals import Interrupted
from dew.training.state import TrainState
from dew.training.trainer import Trainer

__all__ = [
    "Evaluation",
    "Interrupted",
    "LocalTracker",
    "NonFinite",
    "Tracker",
    "Trackers",
    "TrainState",
    "Trainer",
    "evaluate",
]
