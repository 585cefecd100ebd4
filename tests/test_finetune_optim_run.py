"""`dew finetune` under other optimizers, schedules and TrainingArguments, on one tiny model."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import SENTENCES, write_lines, write_llama

from dew.cli.main import main


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_lines(tmp_path_factory.mktemp("data") / "train.jsonl", SENTENCES * 4)


def finetune(model, data, out, *flags) -> int:
    words = ("--model", model, "--data", data, "--output", out, "--max_length", 32)
    return main(["finetune", *map(str, words), "--quiet", "--no_certify", *map(str, flags)])


@pytest.mark.slow
def test_training_arguments_drive_a_run(model, data, tmp_path, capsys):
    content = {
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.5},
        "optim": "adafactor",
        "optim_args": "beta1=0.9",
        "logging_steps": 1,
        "save_strategy": "no",
        "dataloader_num_workers": 4,
    }
    path = tmp_path / "args.json"
    path.write_text(json.dumps(content))
    out = tmp_path / "out"
    assert finetune(model, data, out, "--training_args", path, "--layer_decay", 0.8) == 0
    told = capsys.readouterr()
    assert f"{path}: not honoured, data: dataloader_num_workers 4" in told.err
    assert "adafactor" in told.out
    log = (out / "log.jsonl").read_text().splitlines()
    rates = [line.get("learning_rate") for line in map(json.loads, log)]
    # By hand: half of the peak, and half of a half cosine over four updates.
    expected = [1e-2 * (0.5 + 0.25 * (1 + np.cos(np.pi * n / 4))) for n in range(4)]
    np.testing.assert_allclose([r for r in rates if r is not None][:4], expected, rtol=1e-5)
    # The folder's own configuration is whole without the file.
    assert "training_args" not in (out / "config.yaml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("optim", ["adafactor", "muon"])
def test_a_longer_run_goes_on_from_its_checkpoint(model, data, tmp_path, optim):
    flags = ("--optim", optim, "--learning_rate", 1e-3, "--lr_scheduler_type", "constant")
    more = ("--per_device_train_batch_size", 2, "--save_steps", 2)
    assert finetune(model, data, tmp_path / "a", *flags, *more, "--max_steps", 2) == 0
    assert finetune(model, data, tmp_path / "a", *flags, *more, "--max_steps", 4) == 0
    assert finetune(model, data, tmp_path / "b", *flags, *more, "--max_steps", 4) == 0
    one, two = ((tmp_path / n / "model.safetensors").read_bytes() for n in "ab")
    assert one == two


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--optim_args", "momentum=0.9"), "optimizer adamw: unknown 'momentum'"),
        (("--lr_scheduler_kwargs", "min_lr=1"), "schedule linear: unknown 'min_lr'"),
        (("--training_args", "/nowhere.json"), "/nowhere.json"),
    ],
)
def test_what_does_not_fit_exits_2_before_the_model_is_read(data, tmp_path, capsys, flags, said):
    assert finetune(tmp_path / "no-model", data, tmp_path / "out", *flags) == 2
    assert said in capsys.readouterr().err
