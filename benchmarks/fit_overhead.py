"""What does `fit` add to a step, and how long does a save stop it? A tiny model; milliseconds."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from typing import Any

import jax
import numpy as np
from timing import Row, Timing, arguments, report

STEPS, WARM, SAVED_BYTES = 800, 50, 100 * 2**20


def _trainer(features: int, directory: str | None = None) -> Any:
    from dew import Checkpoints, Trainer
    from dew.nn.backbones.causal_transformer import CausalTransformer
    from dew.objectives.lm import LMObjective
    from dew.training.adam import adamw

    model = CausalTransformer(
        vocab_size=64,
        emb_features=features,
        num_layers=1,
        num_heads=2,
        mlp_features=2 * features,
        max_seq_len=16,
    )
    saves = None if directory is None else Checkpoints(directory)
    return Trainer(LMObjective(model, 8), adamw(1e-3), key=jax.random.key(0), checkpoints=saves)


def _fit(trainer: Any, batch: dict[str, np.ndarray], steps: int) -> float:
    """Return the seconds a step takes from step WARM on, so without what `fit` does once."""
    from dew import Dataset
    from dew.training.progress import Silent

    class Clock(Silent):
        def __init__(self) -> None:
            self.times: dict[int, float] = {}

        def advance(self, step: int, loss: float, rate: float) -> None:
            self.times[step] = time.perf_counter()

    clock = Clock()
    data = Dataset(lambda share: itertools.repeat(batch), None, records=8, batch=8)
    trainer.fit(data, steps=steps, log_every=10**6, progress=clock)
    return (clock.times[steps] - clock.times[WARM]) / (steps - WARM)


def overhead(repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds a step of the compiled function alone, and inside `fit`."""
    trainer = _trainer(16)
    batch = {"text": np.zeros((8, 9), np.int32)}
    _fit(trainer, batch, WARM + 1)
    placed = trainer.placement.batch(batch)
    alone, inside = [], []
    for _ in range(repeats):
        state, frozen = trainer.beginning().fresh(None)
        step = trainer.compiled_step().ready(state, frozen, placed)
        start = time.perf_counter()
        for _ in range(STEPS):
            state, said = step(state, frozen, placed)
            float(said["total"])
        alone.append((time.perf_counter() - start) / STEPS)
        inside.append(_fit(trainer, batch, STEPS))
    return alone, inside


def saving(repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds that a save of 100 MiB stops the loop, and those of a plain copy."""
    from dew import Checkpoints

    stops, copies = [], []
    for _ in range(repeats):
        state = {"params": {"w": jax.numpy.ones(SAVED_BYTES // 4, jax.numpy.float32)}}
        jax.block_until_ready(state)
        start = time.perf_counter()
        np.array(state["params"]["w"])
        copies.append(time.perf_counter() - start)
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = Checkpoints(folder)
            start = time.perf_counter()
            checkpoints.save(1, state, None)
            stops.append(time.perf_counter() - start)
            checkpoints.wait()
    return stops, copies


def main() -> None:
    """Measure both, and print the table."""
    repeats = max(5, arguments(__doc__ or "").repeats)
    alone, inside = overhead(repeats)
    stops, copies = saving(repeats)
    added = statistics.median(inside) - statistics.median(alone)
    stop, copy = 1e3 * statistics.median(stops), 1e3 * statistics.median(copies)
    print(f"fit adds {1e3 * added:.3f} ms to a step")
    print(f"a save stops the loop {stop:.1f} ms; the copy alone takes {copy:.1f} ms")
    rows = [
        Row("tiny model", "step alone", Timing(alone[0], tuple(alone)), 0),
        Row("tiny model", "step in fit", Timing(inside[0], tuple(inside)), 0),
        Row("100 MiB", "plain copy", Timing(copies[0], tuple(copies)), SAVED_BYTES),
        Row("100 MiB", "save", Timing(stops[0], tuple(stops)), SAVED_BYTES),
    ]
    report("fit_overhead", rows, against="plain copy", peak=None)


if __name__ == "__main__":
    main()
