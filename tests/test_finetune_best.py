"""Early stopping, the best checkpoint and trackers of `dew finetune`.

Right values: the rule of transformers' EarlyStoppingCallback, applied to the losses that were
logged, and the weights in the checkpoint that it names.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import SENTENCES, write_lines, write_llama
from safetensors.numpy import load_file

from dew.cli.main import main
from dew.errors import InputRefused
from dew.training.best import Best

FLAGS = ("--max_length", "32", "--per_device_train_batch_size", "2", "--no_certify", "--quiet")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_lines(tmp_path_factory.mktemp("data") / "train.jsonl", SENTENCES[:1] * 8)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory) -> Path:
    return write_lines(tmp_path_factory.mktemp("held") / "held.jsonl", SENTENCES[1:3])


def finetune(model, data, out, *flags) -> int:
    words = ("--model", model, "--data", data, "--output", out, "--learning_rate", 3e-2)
    return main(["finetune", *map(str, words), *FLAGS, *map(str, flags)])


EVALUATED = (
    "--eval_strategy",
    "steps",
    "--eval_steps",
    2,
    "--save_steps",
    2,
    "--save_total_limit",
    1,
)


def test_a_run_stops_early_and_exports_its_best(model, data, held_out, tmp_path, capsys):
    """One sentence learnt by heart makes others unlikelier: the losses held out rise."""
    out = tmp_path / "out"
    flags = (*EVALUATED, "--eval_data", held_out, "--max_steps", 40, "--report_to", "tensorboard")
    flags += ("--load_best_model_at_end", "--early_stopping_patience", 2)
    assert finetune(model, data, out, *flags) == 0
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    losses = {r["step"]: r["eval_loss"] for r in records if "eval_loss" in r}
    best = min(losses, key=lambda step: losses[step])
    assert max(losses) == best + 4 < 40
    told = capsys.readouterr().out
    assert "stopped early" in told
    assert f"best: checkpoint-{best} is exported" in told
    state = json.loads((out / "trainer_state.json").read_text())
    assert state["best_global_step"] == best
    assert Path(state["best_model_checkpoint"]) == out / f"checkpoint-{best}"
    kept = load_file(out / f"checkpoint-{best}" / "model.safetensors")
    exported = load_file(out / "model.safetensors")
    for name, values in kept.items():
        np.testing.assert_array_equal(exported[name], values, err_msg=name)
    results = json.loads((out / "eval_results.json").read_text())
    assert results["eval_loss"] == losses[best]
    assert list((out / "runs").glob("events.out.tfevents.*"))


def test_what_cannot_be_best_is_refused(model, data, held_out, tmp_path, capsys):
    flags = ("--early_stopping_patience", 2, "--max_steps", 4)
    assert finetune(model, data, tmp_path / "one", *flags) == 2
    assert "nothing is evaluated on the way" in capsys.readouterr().err
    flags = ("--load_best_model_at_end", "--eval_data", held_out, *EVALUATED, "--save_steps", 3)
    assert finetune(model, data, tmp_path / "two", *flags, "--max_steps", 4) == 2
    assert "a multiple of eval_steps" in capsys.readouterr().err
    flags = ("--metric_for_best_model", "accuracy", "--eval_data", held_out, *EVALUATED)
    assert finetune(model, data, tmp_path / "three", *flags, "--max_steps", 4) == 2
    assert "does not measure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ranks", "patience", "threshold", "stops"),
    [
        ([3.0, 2.0, 2.5, 2.1], 2, 0.0, True),
        ([3.0, 2.0, 2.5, 1.9], 2, 0.0, False),
        ([3.0, 2.95, 2.92], 2, 0.1, True),
        ([3.0], 1, 0.0, False),
        ([3.0, 3.0], 1, 0.0, True),
        ([5.0, 6.0, 7.0, 8.0], None, 0.0, False),
    ],
)
def test_patience_counts_evaluations_without_a_better_one(ranks, patience, threshold, stops):
    assert Best("val/loss", False, patience, threshold).exhausted(ranks) is stops


def test_scores_of_which_more_is_better_are_turned_around():
    best = Best("val/accuracy", greater=True)
    assert best.rank({"val/accuracy": 0.75}) == -0.75
    assert best.rank({}) is None
    with pytest.raises(InputRefused, match="measures val/loss"):
        best.rank({"val/loss": 1.0})
