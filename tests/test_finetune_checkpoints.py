"""A run's checkpoints: named by updates, whole folders, and resumed in the middle of a window."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from helpers import SENTENCES, write_lines, write_llama
from safetensors.numpy import load_file

import bridges
from bridges.finetune.run_checkpoints import RunCheckpoints
from dew import Trainer
from dew.objectives.lm import LMObjective
from dew.training.progress import Silent
from dew.training.signals import Interrupted

ACCUMULATION, UPDATES = 3, 3


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    bundle = bridges.load(write_llama(folder / "model"))
    data = bridges.dataset(
        write_lines(folder / "train.jsonl", SENTENCES), bundle.processor, seq_len=16, batch=2
    )
    return bundle, data, LMObjective(bundle.model, seq_len=16)


def fit(parts, folder: Path, *, stop: int | None = None, save_every: int | None = None):
    """Train to `UPDATES`, or up to the signal, and return the state."""
    bundle, data, objective = parts

    def write(params, folder):
        bridges.export(bundle.replace(variables={"params": params}), folder, verify=False)

    def describe(done: int, folder: Path) -> None:
        (folder / "done.txt").write_text(str(done))

    checkpoints = RunCheckpoints(str(folder), keep=None, write=write, accumulation=ACCUMULATION)
    checkpoints.describe = describe
    trainer = Trainer(
        objective,
        optax.adam(1e-2),
        key=jax.random.key(0),
        accumulation=ACCUMULATION,
        checkpoints=checkpoints,
    )

    def report(scalars, step: int) -> None:
        if step == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    return trainer.fit(
        data,
        steps=UPDATES * ACCUMULATION,
        log_every=1,
        checkpoint_every=save_every,
        variables=bundle.variables,
        on_report=report,
        progress=Silent(),
    )


@pytest.fixture(scope="module")
def straight(parts, tmp_path_factory):
    return fit(parts, tmp_path_factory.mktemp("straight") / "run")


def done_of(folder: Path) -> dict[str, int]:
    """Return the microbatches that each checkpoint says it holds."""
    return {path.parent.name: int(path.read_text()) for path in folder.glob("*/done.txt")}


@pytest.mark.parametrize(
    ("save_every", "kept"),
    [
        # No folder has the name yet: the window under way is saved with the update before it.
        pytest.param(None, {"checkpoint-1": 5}, marks=pytest.mark.slow),
        # The update is saved already: it stays, and the window's microbatches are read again.
        (ACCUMULATION, {"checkpoint-1": 3}),
    ],
)
def test_a_stop_between_updates_resumes_bit_for_bit(parts, straight, tmp_path, save_every, kept):
    with pytest.raises(Interrupted) as stopped:
        fit(parts, tmp_path, stop=5, save_every=save_every)
    assert stopped.value.code == 143
    assert stopped.value.saved == str(tmp_path / "checkpoint-1")
    assert done_of(tmp_path) == kept
    state = fit(parts, tmp_path, save_every=save_every)
    assert done_of(tmp_path)["checkpoint-3"] == 9
    assert int(state.step) == UPDATES * ACCUMULATION
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(straight), strict=True):
        if jax.numpy.issubdtype(ours.dtype, jax.dtypes.prng_key):
            ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
        np.testing.assert_array_equal(ours, theirs)
    stored = load_file(tmp_path / "checkpoint-3" / "model.safetensors")
    table = state.params["params"]["embed"]["table"]
    np.testing.assert_array_equal(stored["model.embed_tokens.weight"], table)


def test_a_window_before_the_first_update_is_saved_as_checkpoint_0(parts, tmp_path):
    with pytest.raises(Interrupted):
        fit(parts, tmp_path, stop=2)
    assert done_of(tmp_path) == {"checkpoint-0": 2}
    checkpoints = RunCheckpoints(
        str(tmp_path), keep=None, write=lambda *_: None, accumulation=ACCUMULATION
    )
    assert checkpoints.latest == 0
    assert checkpoints.path(2) == str(tmp_path / "checkpoint-0")
