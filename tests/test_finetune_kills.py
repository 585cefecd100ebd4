"""A run that is killed again and again ends as one that never was."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from finetune_runs import STEPS, logged_step, start, wait_for_step
from helpers import SENTENCES, write_lines, write_llama
from safetensors.numpy import load_file


@pytest.mark.slow
def test_twenty_kills_leave_the_curve_as_it_was(tmp_path):
    """Streamed and shuffled data, an accumulation under way: equal to the last bit.

    Right values are those of a run that nobody killed.
    """
    model = write_llama(tmp_path / "model")
    data = write_lines(tmp_path / "stream.jsonl", [f"{n} {s}" for n in range(9) for s in SENTENCES])
    flags = ("--dataset_streaming", "--shuffle_buffer_size", 11, "--save_steps", 3)
    flags += ("--gradient_accumulation_steps", 3, "--quiet", "--report_samples", 0)
    straight = start(model, data, tmp_path / "straight", *flags)
    _, errors = straight.communicate(timeout=300)
    assert straight.returncode == 0, errors
    out, kills = tmp_path / "killed", 0
    moments = np.random.default_rng(7)
    while not (out / "train_results.json").exists():
        run = start(model, data, out, *flags)
        if kills < 20:
            # From the first imports to some steps after the restart.
            first, waits = logged_step(out), moments.random()
            if waits < 0.3:
                time.sleep(4 * waits)
            else:
                wait_for_step(run, out, min(first + int(4 * waits), STEPS - 2))
                time.sleep(0.05 * moments.random())
            run.kill()
            run.communicate()
            kills += 1
        else:
            _, errors = run.communicate(timeout=300)
            assert run.returncode == 0, errors
    assert kills == 20

    def curve(folder: Path) -> list[tuple[int, float]]:
        records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        return [(record["step"], record["loss"]) for record in records if "loss" in record]

    assert curve(out) == curve(tmp_path / "straight")
    assert len(curve(out)) == STEPS
    ours, theirs = (load_file(f / "model.safetensors") for f in (out, tmp_path / "straight"))
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)
