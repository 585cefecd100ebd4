"""axolotl's configuration files: their keys by our names, what is not honoured named."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridges.commands.finetune import COMMAND
from bridges.finetune.other_keys import translated
from dew.cli.options import parse
from dew.errors import InputRefused

AXOLOTL = """
base_model: HuggingFaceTB/SmolLM2-135M
datasets:
  - path: mhenrichsen/alpaca_2k_test
    type: alpaca
val_set_size: 0.05
output_dir: ./outputs/lora-out
adapter: qlora
lora_r: 8
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
sequence_len: 2048
sample_packing: true
eval_sample_packing: true
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 1
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
logging_steps: 1
flash_attention: true
warmup_ratio: 0.1
evals_per_epoch: 4
saves_per_epoch: 1
weight_decay: 0.0
special_tokens:
"""
WANTED = {
    "model_name_or_path": "HuggingFaceTB/SmolLM2-135M",
    "dataset_name": "mhenrichsen/alpaca_2k_test",
    "task": "chat",
    "eval_split": 0.05,
    "use_peft": True,
    "load_in_4bit": True,
    "lora_r": 8,
    "lora_target_modules": ("all-linear",),
    "max_length": 2048,
    "packing": True,
    "gradient_accumulation_steps": 4,
    "per_device_train_batch_size": 2,
    "num_train_epochs": 1,
    "lr_scheduler_type": "cosine",
    "learning_rate": 2e-4,
    "dtype": "bfloat16",
    "activation_checkpointing": True,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "warmup_steps": 0.1,
}


def test_an_axolotl_file_is_read_and_what_is_not_honoured_is_named(tmp_path: Path):
    path = tmp_path / "axolotl.yaml"
    path.write_text(AXOLOTL)
    settings = parse(COMMAND, ["--config", str(path)])
    for name, value in WANTED.items():
        assert settings[name] == value, name
    (note,) = [note for note in settings.notes if "not honoured" in note]
    for name in ("flash_attention", "eval_sample_packing", "evals_per_epoch 4"):
        assert name in note
    assert "tf32" not in note


def test_flags_win_and_unknown_keys_are_still_refused(tmp_path: Path):
    path = tmp_path / "axolotl.yaml"
    path.write_text(AXOLOTL)
    assert parse(COMMAND, ["--config", str(path), "--lora_r", "4"])["lora_r"] == 4
    path.write_text(AXOLOTL + "learning_rat: 1\n")
    with pytest.raises(InputRefused, match="learning_rat"):
        parse(COMMAND, ["--config", str(path)])


def test_our_own_files_pass_through():
    values = {
        "model_name_or_path": "a",
        "max-length": 4,
        "flash_attention": True,
        "datasets": [{"path": "a", "split": "train", "fraction": 0.5}],
    }
    assert translated(values) == (values, [])


def test_several_of_axolotls_datasets_become_ours():
    """axolotl names a format as the path where its files stand beside it."""
    parts = [
        {"path": "json", "data_files": ["a.jsonl", "b.jsonl"], "ds_type": "json", "type": "alpaca"},
        {"path": "some/data", "name": "small", "split": "test", "type": "alpaca"},
    ]
    found, notes = translated({"datasets": parts})
    assert found == {
        "task": "chat",
        "datasets": [
            {"path": ["a.jsonl", "b.jsonl"]},
            {"path": "some/data", "name": "small", "split": "test"},
        ],
    }
    assert notes == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"datasets": "a"}, "expected a list of datasets"),
        (
            {"datasets": [{"path": "a", "type": "completion"}, {"path": "b", "type": "alpaca"}]},
            "one task",
        ),
        ({"datasets": [{"path": "a", "type": "bradley_terry.chat"}]}, "not known"),
        ({"adapter": "lora_plus"}, "expected lora or qlora"),
        ({"val_set_size": 200}, "counts rows"),
        ({"lr_scheduler": "rex"}, "axolotl's own"),
    ],
)
def test_what_has_no_meaning_here_is_refused(changes, message):
    with pytest.raises(InputRefused, match=message):
        translated({"base_model": "a", "datasets": [{"path": "a"}]} | changes)
