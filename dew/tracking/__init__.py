"""Where a run's values go: local journals, TensorBoard, MLflow, W&B, or several at once."""

from dew.tracking.local import LocalTracker
from dew.tracking.mlflow import MLflowTracker
from dew.tracking.tensorboard import TensorBoardTracker
from dew.tracking.tracker import Tracker
from dew.tracking.trackers import Trackers
from dew.tracking.wandb import WandbTracker

__all__ = [
    "LocalTracker",
    "MLflowTracker",
    "TensorBoardTracker",
    "Tracker",
    "Trackers",
    "WandbTracker",
]
