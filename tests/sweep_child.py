"""A sweep for tests to kill: `python sweep_child.py FOLDER TRIALS SECONDS_A_BATCH`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from regression import Line, LineStream, NoisyRegression
from run_configs import run_config

from dew.config import RunConfig
from dew.config.sweep import random_search, sweep
from dew.data import Dataset
from dew.training.progress import Silent

SPACE = {"optim.learning_rate": [0.01, 0.02, 0.03, 0.04], "trainer.seed": [1, 2, 3, 4, 5]}
LOG = "trained.log"


class SlowStream(LineStream):
    """Takes its time for a batch, so that a kill meets a trial under way."""

    seconds = 0.0

    def __next__(self):
        time.sleep(self.seconds)
        return super().__next__()


def main(folder: str, trials: str, seconds: str) -> None:
    """Sweep in `folder`, writing down the name of each trial that is trained."""
    SlowStream.seconds = float(seconds)
    log = os.open(Path(folder) / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    data = Dataset(lambda partition: SlowStream(Line()), None, records=64, batch=4)

    def train(run: RunConfig) -> float:
        os.write(log, f"{run.trainer.name}\n".encode())
        state = run.train(NoisyRegression(), data, progress=Silent())
        return float(state.params["params"]["b"])

    print("ready", flush=True)
    config = run_config(Path(folder), name="rates", steps=12, checkpoint_every=3)
    sweep(
        config,
        SPACE,
        train=train,
        trials=int(trials),
        ledger=Path(folder) / "ledger.json",
        search=random_search,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
