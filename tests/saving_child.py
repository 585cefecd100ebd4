"""Saves one checkpoint, for tests to break: `python saving_child.py DIRECTORY STEP`."""

from __future__ import annotations

import sys

import numpy as np

from dew.checkpoints import Checkpoints
from dew.data import DataPartition


def save(directory: str, step: int) -> None:
    """Save a state whose values tell the step."""
    checkpoints = Checkpoints(directory, keep=1)
    state = {"w": np.full(2000, step, np.float32), "b": np.arange(3) + step}
    checkpoints.save(step, state, b"%d" % step, share=DataPartition())
    checkpoints.wait()


if __name__ == "__main__":
    save(sys.argv[1], int(sys.argv[2]))
