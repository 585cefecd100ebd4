"""Runs of `dew finetune` in processes of their own, which tests stop or kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

FLAGS = ("--max_length", "32", "--per_device_train_batch_size", "2", "--learning_rate", "1e-2")

# Signals need real processes. A slow learner of many steps is stopped somewhere in the middle.
STEPS = 60


def start(model, data, out, *flags) -> subprocess.Popen:
    words = ["finetune", "--model", model, "--data", data, "--output", out, "--steps", STEPS]
    words += [*FLAGS, "--no_certify", "--logging_steps", 1, "--save_steps", 20, *flags]
    script = "import sys; from dew.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(data.parent / "jax")},
    )


def logged_step(out: Path) -> int:
    try:
        return json.loads((out / "log.jsonl").read_text().splitlines()[-1])["step"]
    except (OSError, ValueError, IndexError, KeyError):
        return 0


def wait_for_step(run: subprocess.Popen, out: Path, step: int) -> None:
    while logged_step(out) < step:
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)
