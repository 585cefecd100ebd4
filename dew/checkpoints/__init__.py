"""The checkpoints of one run: written aside, made durable, then named."""

from dew.checkpoints.checkpoints import Checkpoints
from dew.checkpoints.commit import CheckpointFailed
from dew.checkpoints.manifest import CheckpointDamaged

__all__ = ["CheckpointDamaged", "CheckpointFailed", "Checkpoints"]
