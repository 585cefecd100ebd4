"""The guide's first example, as printed, from a fresh shell."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time

EXAMPLE = """\
import itertools

import jax
import numpy as np
import optax

from dew import Trainer, metrics
from dew.data import Dataset
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm import LMObjective

train_tokens = np.tile(np.array([0, 1, 2, 3, 0, 1, 2, 3, 0], np.int32), (8, 1))
val_tokens = np.tile(np.array([1, 2, 3, 0, 1, 2, 3, 0, 1], np.int32), (8, 1))
data = Dataset(train=lambda partition: itertools.repeat({"text": train_tokens}),
               val=lambda partition: iter([{"text": val_tokens}]), records=8, batch=8)
model = CausalTransformer(vocab_size=4, emb_features=16, num_layers=1,
                          num_heads=2, mlp_features=32, max_seq_len=16,
                          dtype="float32", attention_impl="xla")
objective = LMObjective(model, seq_len=8)
trainer = Trainer(objective, optax.adam(0.01), key=jax.random.key(0))
state = trainer.fit(data, steps=10, log_every=5, eval_every=5,
                    metrics=(metrics.perplexity(),))
assert int(state.step) == 10
"""

SECONDS = 15.0


def cpu_seconds() -> float:
    """The processor time of this process's children that ended."""
    times = os.times()
    return times.children_user + times.children_system


def test_the_first_example_runs_verbatim_from_a_fresh_shell(tmp_path):
    """It prints losses and perplexities of steps 5 and 10, and a perplexity of 1 is perfect.

    It takes less than 15 s with compiling: of the clock, or on a machine that is busy with other
    work of its own processors' time.
    """
    (tmp_path / "example.py").write_text(EXAMPLE)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    clock, worked = time.monotonic(), cpu_seconds()
    run = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    clock, worked = time.monotonic() - clock, cpu_seconds() - worked
    assert run.returncode == 0, run.stderr
    assert min(clock, worked) < SECONDS
    number = r"(\d+(?:\.\d+)?(?:e[+-]\d+)?)"
    losses = dict(re.findall(rf"^step (\d+)/10  loss {number}", run.stdout, re.MULTILINE))
    scores = dict(re.findall(rf"^step (\d+)/10  val/perplexity {number}", run.stdout, re.MULTILINE))
    assert list(losses) == list(scores) == ["5", "10"]
    assert float(losses["10"]) < float(losses["5"]) < math.log(4) + 0.5
    assert 1 <= float(scores["10"]) < float(scores["5"])
