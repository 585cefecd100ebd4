"""A run for tests to interrupt: `python training_child.py DIRECTORY STEPS SECONDS_A_BATCH`."""

from __future__ import annotations

import sys
import time

import jax
import optax
from regression import Line, LineStream, NoisyRegression

from dew.checkpoints import Checkpoints
from dew.data import Dataset
from dew.objectives.base import EMASpec
from dew.training import Trainer


class SlowStream(LineStream):
    """Takes its time for a batch, so that a signal meets a run under way."""

    seconds = 0.0

    def __next__(self):
        time.sleep(self.seconds)
        return super().__next__()


def trainer_of(directory: str | None) -> Trainer:
    """The run's trainer: a window of 3, an average, a clip, and draws in each step."""
    return Trainer(
        NoisyRegression(ema=EMASpec(lambda updates: 0.9)),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05)),
        key=jax.random.key(11),
        accumulation=3,
        checkpoints=None if directory is None else Checkpoints(directory),
    )


def main(directory: str, steps: str, seconds: str) -> None:
    SlowStream.seconds = float(seconds)
    data = Dataset(lambda partition: SlowStream(Line()), None, records=64, batch=4)
    trainer_of(directory).fit(data, steps=int(steps), log_every=1, checkpoint_every=4)


if __name__ == "__main__":
    main(*sys.argv[1:])
