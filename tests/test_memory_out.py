"""Fault 20, memory that runs out: a message with sizes, a status that is not 0, nothing lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import write_llama

from dew.checkpoints import Checkpoints
from dew.cli.memory import memory_note

LIMIT = 3000 * 2**20


def run(*words: object, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    # A shell sets the limit: a function of ours would run after a fork, which jax warns of.
    limited = ["sh", "-c", f'ulimit -v {LIMIT // 1024} && exec "$@"', "sh"]
    return subprocess.run(
        [*limited, sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **(environment or {})},
    )


@pytest.mark.slow
def test_a_step_that_memory_does_not_hold_ends_with_the_sizes(tmp_path: Path):
    """16384 rows of 64 tokens want some 8 GB; 3 GB there are."""
    model, data = tmp_path / "model", tmp_path / "text.txt"
    model.mkdir()
    write_llama(model)
    data.write_text("the quick brown fox jumps over the lazy dog. " * 20_000)
    words = ["finetune", "--model", model, "--data", data, "--output", tmp_path / "out"]
    words += ["--steps", "2", "--per_device_train_batch_size", "16384"]
    ended = run("-m", "dew.cli.main", *words)
    assert ended.returncode == 1
    *_, said, sizes, debug = ended.stderr.splitlines()
    assert re.fullmatch(r"dew: \w+: .*[Oo]ut of memory .*\d+ bytes\.?", said)
    assert re.search(
        r"holds \d\.\d\d GiB .* its limit \(ulimit -v\) is 2\.93 GiB\. .*smaller", sizes
    )
    assert "Traceback" not in ended.stderr
    assert debug.startswith("dew: add --debug")


SAVE = """
import json, resource, sys
import jax, numpy as np
from dew.checkpoints import Checkpoints

checkpoints = Checkpoints(sys.argv[1])
state = {"w": jax.numpy.ones((100, 2**20), "float32")}
checkpoints.save(1, {"w": np.ones(3)}, None)
checkpoints.wait()
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 150 * 2**20,) * 2)
try:
    checkpoints.save(2, state, None)
    checkpoints.wait()
except BaseException as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
"""


def test_a_save_that_memory_does_not_hold_fails_aloud_and_loses_nothing(tmp_path: Path):
    """The copy of a state of 400 MiB, with 150 MiB left."""
    ended = run("-c", SAVE, tmp_path)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert re.match(r"CheckpointFailed: checkpoint-2 did not land in .*400\. MiB", said)
    assert Checkpoints(str(tmp_path)).latest == 1


def test_only_errors_for_want_of_memory_get_the_note():
    assert memory_note(ValueError("shape")) is None
    failed = RuntimeError("checkpoint")
    failed.__cause__ = MemoryError()
    assert "memory ran out" in (memory_note(failed) or "")
    with pytest.raises(MemoryError) as caught:
        np.empty(2**60, np.uint8)
    assert "GiB" in (memory_note(caught.value) or "")
