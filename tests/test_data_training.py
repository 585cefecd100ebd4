"""Runs over streamed data, DataLoaders and buckets: stopped, resumed, and equal bit for bit.

The oracle is the run that nothing happened to, and for the DataLoader the loss that torch's own
batches give.
"""

import copy
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from regression import Line, NoisyRegression

from bridges.data.streaming import stream_rows
from dew.checkpoints import Checkpoints
from dew.data.buckets import RaggedRows, bucketed
from dew.training import Trainer
from dew.training.progress import Silent

HERE = Path(__file__).resolve().parent
STEPS = 30


def rows_of(count: int) -> list[dict]:
    """The rows of `regression.Line`, as JSON has them."""
    fields = Line(rows=count).take(np.arange(count))
    return [{name: values[n].tolist() for name, values in fields.items()} for n in range(count)]


def collate(rows):
    return {name: np.array([row[name] for row in rows], np.float32) for name in rows[0]}


def streamed(folder: Path):
    """Rows of three files, through a buffer of seven."""
    for number in range(3):
        path = folder / f"{number}.jsonl"
        if not path.exists():
            lines = [json.dumps(row) for row in rows_of(40)[13 * number : 13 * number + 13]]
            path.write_text("\n".join(lines))
    return stream_rows(folder, collate, batch=4, shuffle_buffer=7, seed=1)


def loaded(folder: Path, *, stateful: bool = False):
    """The same rows by a torch DataLoader that shuffles and draws."""
    del folder
    import torch

    import bridges

    torch.utils.data.get_worker_info()  # a submodule that torch loads lazily
    kind = torch.utils.data.DataLoader
    if stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader as kind

    def noisy(samples):
        batch = torch.utils.data.default_collate(samples)
        return {name: value + 0.01 * torch.rand(value.shape) for name, value in batch.items()}

    rows = [{name: np.float32(value) for name, value in row.items()} for row in rows_of(39)]
    options = {"batch_size": 4, "shuffle": True, "drop_last": True, "collate_fn": noisy}
    return bridges.from_dataloader(kind(rows, **options), seed=2)


def in_buckets(folder: Path):
    """The same rows, each several times over so that lengths differ; the mask is not read."""
    del folder
    rows = rows_of(39)
    fields = {name: np.array([row[name] for row in rows], np.float32) for name in rows[0]}
    lengths = [np.ones(1 + n % 20, np.float32) for n in range(39)]
    return bucketed(RaggedRows.joined({**fields, "length": lengths}), batch=4, widths=[8, 20])


@functools.cache
def _trainer() -> Trainer:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05))
    trainer = Trainer(NoisyRegression(), optimizer, key=jax.random.key(0), accumulation=3)
    trainer.beginning()
    trainer.compiled_step()  # the copies share what is compiled
    return trainer


def fit(data, steps: int, directory=None):
    """Train; return the losses by step, and the state."""
    trainer = copy.copy(_trainer())
    trainer.checkpoints = None if directory is None else Checkpoints(str(directory))
    losses = {}

    def keep(scalars, step):
        if "train/loss" in scalars:
            losses[step] = scalars["train/loss"]
            print(json.dumps({"step": step, "loss": scalars["train/loss"]}), flush=True)

    state = trainer.fit(
        data,
        steps=steps,
        log_every=1,
        checkpoint_every=None if directory is None else 4,
        on_report=keep,
        progress=Silent(),
    )
    return losses, state


SOURCES = {
    "streamed": streamed,
    "loaded": loaded,
    "stateful": functools.partial(loaded, stateful=True),
    "bucketed": in_buckets,
}


@pytest.mark.parametrize(
    "name",
    ["streamed", "loaded", *(pytest.param(n, marks=pytest.mark.slow) for n in list(SOURCES)[2:])],
)
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_run_that_was_stopped_goes_on_as_if_it_was_not(tmp_path, name):
    if name in ("loaded", "stateful"):
        pytest.importorskip("torch")
    (tmp_path / "data").mkdir()
    source = functools.partial(SOURCES[name], tmp_path / "data")
    whole, state = fit(source(), 17)
    # A run that ends applies a window that is not full, so it ends with one: 6 is 2 times 3.
    losses, _ = fit(source(), 6, tmp_path / "run")
    rest, resumed = fit(source(), 17, tmp_path / "run")
    assert {**losses, **rest} == whole
    for ours, theirs in zip(
        jax.tree.leaves(resumed.params), jax.tree.leaves(state.params), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def main(folder: str, steps: str) -> None:
    """Train in a process of its own, with checkpoints."""
    fit(streamed(Path(folder) / "data"), int(steps), Path(folder) / "run")


@pytest.mark.slow
def test_a_streamed_run_killed_at_twenty_moments_has_the_same_curve(tmp_path):
    """Issue 7: SIGKILL at random moments, streaming, a shuffle buffer, accumulation under way."""
    (tmp_path / "data").mkdir()
    steps, kills = 200, 20
    whole, _ = fit(streamed(tmp_path / "data"), steps)
    moments = np.random.default_rng(int(os.environ.get("DEW_KILL_SEED", "0")))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
        "JAX_PLATFORMS": "cpu",
    }
    found: dict[int, float] = {}

    def run(kill_after: int | None) -> int:
        """Run a child, kill it after so many reports and a moment; return how many came."""
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "test_data_training",
            str(tmp_path),
            str(steps),
        ]
        came = 0
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.endswith("\n"):
                    break  # killed while it wrote
                report = json.loads(line)
                before = found.setdefault(report["step"], report["loss"])
                assert before == report["loss"] == whole[report["step"]]
                came += 1
                if came == kill_after:
                    time.sleep(moments.uniform(0, 0.05))
                    process.send_signal(signal.SIGKILL)
        return came

    for _ in range(kills):
        run(int(moments.integers(1, 12)))
    run(None)
    assert found == whole


if __name__ == "__main__":
    main(*sys.argv[1:])
