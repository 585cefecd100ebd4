"""The guide's search for a learning rate runs as it is printed, from a fresh shell."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_training_guide import EXAMPLE as FIRST

# The second example of the guide goes on from the first.
EXAMPLE = (
    FIRST
    + '''
from dew import LocalTracker, evaluate
from dew.config import ModelConfig, OptimConfig, RunConfig, TrainerConfig
from dew.config.sweep import grid_search, sweep
from dew.registry import datasets

config = RunConfig(
    model=ModelConfig("causal_transformer", {"vocab_size": 4, "emb_features": 16,
                                             "num_layers": 1, "num_heads": 2,
                                             "mlp_features": 32, "max_seq_len": 16}),
    # The synthetic batches above stand in for the dataset this names.
    data=datasets["token_windows"](seq_len=8),
    optim=OptimConfig(optimizer="adam"),
    trainer=TrainerConfig(name="lm-rate", checkpoint_dir="runs/sweep", steps=10, batch_size=8,
                          eval_every=None, checkpoint_every=None),
)


def trial(run: RunConfig) -> float:
    """Train one point and score it: the perplexity its own run ends on."""
    state = run.train(objective, data, name=run.trainer.name or "lm-rate")
    return float(evaluate(objective, state.params, data.val, metrics=(metrics.perplexity(),),
                          key=jax.random.key(1), step=int(state.step)).scores["val/perplexity"])


with LocalTracker("runs/sweep/tracking") as tracker:
    trials = sweep(config, {"optim.learning_rate": [0.01, 0.003]}, train=trial, trials=2,
                   ledger="runs/sweep/ledger.json", tracker=tracker, search=grid_search)
print(min(trials, key=lambda trial: trial.value).overrides)
'''
)


@pytest.mark.slow
def test_the_guides_search_trains_two_rates_and_prints_the_better(tmp_path):
    (tmp_path / "example.py").write_text(EXAMPLE)
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        "JAX_PLATFORMS": "cpu",
    }
    run = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    # Ten steps are few: the rate that goes further ends lower.
    assert run.stdout.splitlines()[-1] == "{'optim.learning_rate': 0.01}"
    sweep = tmp_path / "runs/sweep"
    for number, rate in enumerate((0.01, 0.003)):
        folder = sweep / f"lm-rate/trial-{number}"
        record = json.loads((folder / "run.json").read_text())
        assert record["optim"] == {**record["optim"], "optimizer": "adam", "learning_rate": rate}
        assert (folder / "checkpoint-10").is_dir()
        assert (folder / "tracking/scalars.jsonl").is_file()
    values = [row["value"] for row in json.loads((sweep / "ledger.json").read_text())["trials"]]
    lines = (sweep / "tracking/scalars.jsonl").read_text().splitlines()
    assert [json.loads(line)["sweep/value"] for line in lines] == values
    assert 1 < values[0] < values[1] < 4.5
