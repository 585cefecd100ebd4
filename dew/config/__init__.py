"""A run as values: its configuration, its record, and sweeps over a space of them."""

from dew.config.parts import ModelConfig, ObjectiveConfig, OptimConfig, TrainerConfig
from dew.config.run import RunConfig
from dew.config.values import ConfigRefused

__all__ = [
    "ConfigRefused",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "RunConfig",
    "TrainerConfig",
]
