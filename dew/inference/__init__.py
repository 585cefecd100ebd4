"""Running a loaded model: the bundle, the tasks, and the decode engine."""

from dew.inference.bundle import Bundle

__all__ = ["Bundle"]
