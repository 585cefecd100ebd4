"""Run configurations for tests: of a tiny language model, and for a regression to train under."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dew.config import ModelConfig, ObjectiveConfig, OptimConfig, RunConfig, TrainerConfig
from dew.registry import datasets

SIZES = {
    "vocab_size": 4,
    "emb_features": 16,
    "num_layers": 1,
    "num_heads": 2,
    "mlp_features": 32,
    "max_seq_len": 16,
}


def run_config(folder: Path, **trainer: Any) -> RunConfig:
    """Return a configuration whose runs lie in `folder`; SGD, since its updates have a formula."""
    trainer = {"name": "line", "steps": 6, "batch_size": 4, "checkpoint_every": 2, **trainer}
    return RunConfig(
        model=ModelConfig("causal_transformer", SIZES),
        data=datasets["token_windows"](seq_len=8),
        optim=OptimConfig(optimizer="sgd", learning_rate=0.05),
        trainer=TrainerConfig(checkpoint_dir=str(folder), **trainer),
    )


def lm_config(folder: Path, **trainer: Any) -> RunConfig:
    """Return a whole configuration over token files that it writes into `folder`."""
    for name, repeats in (("train", 50), ("val", 20)):
        np.save(folder / f"{name}.npy", np.tile(np.arange(4, dtype=np.uint16), repeats))
    trainer = {"name": "tiny", "steps": 8, "batch_size": 8, "log_every": 4, **trainer}
    return RunConfig(
        model=ModelConfig("causal_transformer", SIZES),
        objective=ObjectiveConfig("lm"),
        data=datasets["token_windows"](
            seq_len=8, train=str(folder / "train.npy"), val=str(folder / "val.npy")
        ),
        optim=OptimConfig(learning_rate=0.01),
        trainer=TrainerConfig(checkpoint_dir=str(folder / "runs"), **trainer),
    )
