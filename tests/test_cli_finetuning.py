"""`dew.finetune`: the command from Python, with rows in memory and a folder to go on in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import SENTENCES, write_llama
from safetensors.numpy import load_file

import dew
from dew.errors import InputRefused

SETTINGS = {
    "max_length": 32,
    "per_device_train_batch_size": 2,
    "max_steps": 2,
    "certify": False,
    "quiet": True,
    "report_samples": 0,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model"))


def test_rows_in_memory_become_a_folder_that_is_the_commands(model, tmp_path):
    """Equal weights from Python and from the command line."""
    import json

    from dew.cli.main import main

    rows = [{"text": text} for text in SENTENCES * 2]
    run = dew.finetune(model, rows, tmp_path / "out", **SETTINGS)
    assert run.results["train_loss"] > 0
    assert "generated_text" in run.pipeline()("So foul", max_new_tokens=2)[0]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--model", model, "--data", data, "--output", tmp_path / "typed", "--max_length", 32]
    words += ["--per_device_train_batch_size", 2, "--max_steps", 2, "--no_certify", "--quiet"]
    assert main(["finetune", *map(str, words), "--report_samples", "0"]) == 0
    ours = load_file(run.folder / "model.safetensors")
    theirs = load_file(tmp_path / "typed" / "model.safetensors")
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)
    # The same call finds the run finished.
    assert dew.finetune(model, rows, tmp_path / "out", **SETTINGS).results == run.results


def test_wrong_settings_are_refused_together(model, tmp_path):
    with pytest.raises(InputRefused, match=r"(?s)max_stepz.*learning_rate"):
        dew.finetune(model, SENTENCES[0], tmp_path / "out", max_stepz=3, learning_rate="fast")
    with pytest.raises(InputRefused, match="expected a folder"):
        dew.finetune(object(), [{"text": "a"}], tmp_path / "out")
    with pytest.raises(InputRefused, match="rows of texts"):
        dew.finetune(model, [{"text": object()}], tmp_path / "out")
