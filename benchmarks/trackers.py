"""What does a report cost, by tracker, and do runs that are tracked take longer?

First one report of six scalars: local, TensorBoard and MLflow's file store in turn. Then 10,000
steps of a small regression that logs every 10: untracked, local and TensorBoard in turn, the
spread of the untracked ones beside them.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from timing import Row, Timing, arguments, report

REPORTS, BLOCKS = 200, 5
STEPS, LOG_EVERY = 10_000, 10
AT_MOST = {"tensorboard": 7, "mlflow": 60}
SCALARS = {f"train/scalar_{index}": 1.2345 / (index + 1) for index in range(6)}


def trackers(folder: Path) -> dict[str, Any]:
    """Return a new tracker of each kind, by name."""
    from dew import LocalTracker, MLflowTracker, TensorBoardTracker

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    return {
        "local": LocalTracker(folder / "local"),
        "tensorboard": TensorBoardTracker(folder / "events"),
        "mlflow": MLflowTracker("benchmark", uri=(folder / "store").as_uri()),
    }


def report_costs(folder: Path) -> list[Row]:
    """Return the seconds of a report, block by block in turn; the first opens the tracker."""
    made = trackers(folder)
    first = {name: _seconds(tracker, 0) for name, tracker in made.items()}
    blocks: dict[str, list[float]] = {name: [] for name in made}
    for block in range(BLOCKS):
        for name, tracker in made.items():
            steps = range(1 + block * REPORTS, 1 + (block + 1) * REPORTS)
            blocks[name].append(statistics.median(_seconds(tracker, step) for step in steps))
    for tracker in made.values():
        tracker.close()
    return [
        Row("one report of six scalars", name, Timing(first[name], tuple(blocks[name])), 0.0)
        for name in made
    ]


def _seconds(tracker: Any, step: int) -> float:
    began = time.perf_counter()
    tracker.log(SCALARS, step)
    return time.perf_counter() - began


def run_times(folder: Path, repeats: int) -> list[Row]:
    """Return the seconds of whole fits; all share one compiled step."""
    trainer = _trainer()
    _fit(trainer, None, 100)
    times: dict[str, list[float]] = {"untracked": [], "local": [], "tensorboard": []}
    for repeat in range(repeats):
        made = trackers(folder / str(repeat))
        names = deque(times)
        names.rotate(repeat)  # what comes first in a turn finds the machine as no other does
        for name in names:
            times[name].append(_fit(trainer, made.get(name), STEPS))
        for tracker in made.values():
            tracker.close()
    return [
        Row(f"{STEPS} steps, log_every {LOG_EVERY}", name, Timing(runs[0], tuple(runs)), 0.0)
        for name, runs in times.items()
    ]


def _trainer() -> Any:
    from dew import Objective, Ratio, Trainer

    class Regression(Objective):
        def init(self, key: Any, variables: Any = None) -> Any:
            return {"params": {"w": jnp.zeros((64, 8))}}

        def loss(self, variables: Any, batch: Any, step: Any) -> Ratio:
            errors = batch["x"] @ variables["params"]["w"] - batch["y"]
            return Ratio(jnp.sum(errors**2), jnp.float32(errors.size))

    return Trainer(Regression(), optax.adam(1e-3), key=jax.random.key(0))


def _fit(trainer: Any, tracker: Any, steps: int) -> float:
    from dew import Dataset
    from dew.training.progress import Silent

    generator = np.random.default_rng(0)
    batch = {
        "x": generator.normal(size=(32, 64)).astype(np.float32),
        "y": generator.normal(size=(32, 8)).astype(np.float32),
    }
    data = Dataset(lambda share: itertools.repeat(batch), None, records=32, batch=32)
    trainer.tracker = tracker
    began = time.perf_counter()
    trainer.fit(data, steps=steps, log_every=LOG_EVERY, progress=Silent())
    return time.perf_counter() - began


def main() -> None:
    """Measure both, print the tables, and say how they stand to what is required."""
    options = arguments(__doc__ or "")
    with tempfile.TemporaryDirectory() as folder:
        costs = report_costs(Path(folder) / "reports")
        runs = run_times(Path(folder) / "runs", options.repeats)
    for row in costs + runs:
        row.figures["microseconds"] = row.timing.median * 1e6
    report("trackers", costs + runs, against="local", peak=None)
    local = costs[0].timing.median
    for row in costs[1:]:
        times, limit = row.timing.median / local, AT_MOST[row.side]
        print(f"{row.side}: {times:.1f} times a local report of {local * 1e6:.1f} us, <= {limit}")
    plain = runs[0].timing.runs
    print(f"untracked: {min(plain):.2f} to {max(plain):.2f} s")
    for row in runs[1:]:
        inside = min(plain) <= row.timing.median <= max(plain)
        print(f"{row.side}: median {row.timing.median:.2f} s, within that spread: {inside}")


if __name__ == "__main__":
    main()
