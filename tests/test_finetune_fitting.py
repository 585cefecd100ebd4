"""`--dry-run`: whether a run fits, and settings that do."""

from __future__ import annotations

import re

import pytest
from finetune_runs import FLAGS
from helpers import SENTENCES, write_lines, write_llama

from dew.cli.main import main


def finetune(folder, *flags) -> int:
    words = ("--model", folder / "model", "--data", folder / "rows.jsonl", "--output", folder / "o")
    return main(["finetune", *map(str, words), *FLAGS, *map(str, flags)])


@pytest.mark.slow
def test_a_dry_run_suggests_settings_that_fit(tmp_path, capsys):
    """The suggestion is tried here: it fits in the same limit, and updates see as many rows."""
    write_llama(tmp_path / "model")
    write_lines(tmp_path / "rows.jsonl", SENTENCES)
    words = ("--per_device_train_batch_size", 1024, "--dry_run")
    assert finetune(tmp_path, *words) == 0
    whole = capsys.readouterr().out
    step = float(re.search(r"the step +([0-9.]+) GiB", whole)[1])
    total = float(re.search(r"in all +([0-9.]+) GiB", whole)[1])
    limit = int((total - 0.3 * step) * 2**30)
    assert finetune(tmp_path, *words, "--memory_limit", limit) == 1
    told = capsys.readouterr().out
    found = re.search(r"this fits, with the same rows an update: (.*)", told)[1].split()
    rows = int(found[found.index("--per_device_train_batch_size") + 1])
    windows = int(found[found.index("--gradient_accumulation_steps") + 1])
    assert rows * windows == 1024
    # What the process itself takes grows a little from call to call.
    again = ("--dry_run", "--memory_limit", limit + 2**28)
    assert finetune(tmp_path, *found, *again) == 0
    assert finetune(tmp_path, *words, "--memory_limit", 2**20) == 1
    assert "no batch fits" in capsys.readouterr().out
