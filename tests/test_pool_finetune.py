"""`dew finetune` under `dew launch`: the same run on one process, two, or two and then one.

The right weights are those of a run that nothing disturbed, on one process with two devices.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import write_llama
from safetensors.numpy import load_file

PATIENCE = 400


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_llama(folder / "model")
    text = "the quick brown fox jumps over the lazy dog. " * 400
    (folder / "text.txt").write_text(text, encoding="utf-8")
    return folder


def command(inputs: Path, output: Path, *, processes: int, devices: int, steps: int) -> list[str]:
    launch = [sys.executable, "-m", "dew.cli.main", "launch"]
    return [
        *launch,
        *("--processes", str(processes), "--devices_per_process", str(devices), "--"),
        *("dew", "finetune", "--model", str(inputs / "model"), "--data", str(inputs / "text.txt")),
        *("--output", str(output), "--max_length", "16", "--max_steps", str(steps)),
        *("--save_steps", "4", "--logging_steps", "1", "--per_device_train_batch_size", "2"),
        *("--lr_scheduler_type", "constant", "--warmup_steps", "0", "--certify", "false"),
        *("--learning_rate", "1e-3"),
    ]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PATH": path}


def ran(line: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def undisturbed(inputs, tmp_path_factory) -> dict[str, np.ndarray]:
    output = tmp_path_factory.mktemp("undisturbed") / "run"
    done = ran(command(inputs, output, processes=1, devices=2, steps=8))
    assert done.returncode == 0, done.stderr[-3000:]
    return weights(output)


def assert_same(found: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert found.keys() == right.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, right[name], rtol=1e-4, atol=2e-6, err_msg=name)


@pytest.mark.slow
def test_two_processes_then_one_end_as_one_that_never_stopped(inputs, undisturbed, tmp_path):
    output = tmp_path / "run"
    first = ran(command(inputs, output, processes=2, devices=1, steps=4))
    assert first.returncode == 0, first.stderr[-3000:]
    second = ran(command(inputs, output, processes=1, devices=2, steps=8))
    assert second.returncode == 0, second.stderr[-3000:]
    assert "going on from checkpoint-4" in second.stdout
    assert_same(weights(output), undisturbed)


@pytest.mark.slow
def test_sigterm_saves_on_all_and_the_next_start_goes_on(inputs, tmp_path):
    output = tmp_path / "run"
    line = command(inputs, output, processes=2, devices=1, steps=100_000)
    launcher = subprocess.Popen(
        line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + PATIENCE
    assert launcher.stdout is not None
    for text in launcher.stdout:
        if "step 5/" in text or time.monotonic() > deadline:
            break
    launcher.send_signal(signal.SIGTERM)
    rest, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 143, rest[-3000:]
    assert "is saved" in rest
    saved = max(int(path.name.split("-")[1]) for path in output.glob("checkpoint-*"))
    again = ran(command(inputs, output, processes=2, devices=1, steps=saved + 2))
    assert again.returncode == 0, again.stderr[-3000:]
    assert f"going on from checkpoint-{saved}" in again.stdout
