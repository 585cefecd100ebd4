"""TrainingArguments as JSON become settings, and what is not honoured is named."""

import dataclasses
import json

import pytest

from bridges.commands.finetune import COMMAND
from bridges.finetune.settings import OPTIONS
from bridges.finetune.trainer_defaults import GROUPS
from bridges.finetune.training_args import read_training_args, with_training_args
from dew.cli.options import parse
from dew.errors import InputRefused

SPELLINGS = {spelling for option in OPTIONS for spelling in option.spellings}


@pytest.fixture(scope="module")
def defaults():
    """What transformers writes of arguments that nobody set."""
    pytest.importorskip("torch")
    from transformers import TrainingArguments

    return json.loads(TrainingArguments(output_dir="out", use_cpu=True).to_json_string())


def written(tmp_path, content):
    path = tmp_path / "args.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.torch
def test_every_field_of_transformers_is_a_setting_or_named_with_its_default(defaults):
    known = {name: default for fields in GROUPS.values() for name, default in fields.items()}
    assert set(defaults) - SPELLINGS - {"bf16", "fp16"} == set(known)
    # transformers turns pinned memory off once it has found that only the CPU is used.
    differing = {name for name in known if defaults[name] != known[name]}
    assert differing <= {"dataloader_pin_memory"}


@pytest.mark.torch
def test_transformers_own_defaults_are_taken_and_nothing_is_named(defaults, tmp_path):
    defaults["dataloader_pin_memory"] = True
    read = read_training_args(written(tmp_path, defaults))
    assert read.notes == ()
    assert read.values["learning_rate"] == 5e-5
    assert read.values["logging_steps"] == 500
    assert read.values["optim"] == "adamw_torch_fused"
    assert read.values["use_cpu"] is True
    assert "dtype" not in read.values
    assert "lr_scheduler_kwargs" not in read.values


@pytest.mark.torch
def test_what_is_set_is_taken_or_named(tmp_path):
    from transformers import TrainingArguments

    theirs = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        bf16=True,
        optim="sgd",
        optim_args="momentum=0.9, nesterov=true",
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr": 1e-6, "num_cycles": 1},
        warmup_steps=0.1,
        activation_checkpointing=True,
        label_smoothing_factor=0.1,
        dataloader_num_workers=4,
        dataloader_drop_last=True,
        dataloader_pin_memory=False,
        save_strategy="best",
        metric_for_best_model="loss",
        hub_token="hf_secret",
    )
    path = tmp_path / "args.json"
    path.write_text(theirs.to_json_string())
    read = read_training_args(path)
    assert read.values["dtype"] == "bfloat16"
    assert read.values["activation_checkpointing"] is True
    assert read.values["warmup_steps"] == 0.1
    assert read.values["optim_args"] == ("momentum=0.9", "nesterov=true")
    assert read.values["lr_scheduler_kwargs"] == ("min_lr=1e-06", "num_cycles=1")
    notes = "\n".join(read.notes)
    assert "not honoured, optimizer: label_smoothing_factor 0.1" in notes
    data = "dataloader_drop_last True, dataloader_num_workers 4, dataloader_pin_memory False"
    assert f"not honoured, data: {data}" in notes
    assert "not honoured, save_strategy (it is steps): save_strategy 'best'" in notes
    assert read.values["metric_for_best_model"] == "loss"
    assert len(read.notes) == 3
    assert "secret" not in notes


def test_flags_win_and_what_comes_out_names_no_file(tmp_path):
    content = {"learning_rate": 1e-3, "seed": 7, "adam_beta2": 0.95, "optim": "galore_adamw"}
    content["optim_args"] = "rank=64"
    path = written(tmp_path, content)
    words = ["--model", "m", "--data", "d", "--seed", "8", "--optim", "muon"]
    settings = with_training_args(parse(COMMAND, [*words, "--from-training-args", str(path)]))
    assert settings["learning_rate"] == 1e-3
    assert settings.origins["learning_rate"] == str(path)
    assert (settings["seed"], settings["optim"]) == (8, "muon")
    assert (settings["adam_beta2"], settings["optim_args"]) == (0.95, ())
    assert settings["weight_decay"] == 0.0
    assert settings["training_args"] is None


def test_without_a_file_the_settings_are_the_same():
    settings = parse(COMMAND, ["--model", "m", "--data", "d"])
    assert with_training_args(settings) is settings
    assert dataclasses.asdict(settings)["values"]["training_args"] is None


def test_older_spellings_are_read(tmp_path):
    content = {
        "warmup_ratio": 0.1,
        "warmup_steps": 0,
        "evaluation_strategy": "epoch",
        "gradient_checkpointing": True,
        "activation_checkpointing": False,
        "overwrite_output_dir": True,
        "optim": "paged_adamw_8bit",
        "max_length": 256,
        "eos_token": "</s>",
    }
    read = read_training_args(written(tmp_path, content))
    assert read.values == {
        "warmup_steps": 0.1,
        "eval_strategy": "epoch",
        "activation_checkpointing": True,
        "optim": "adamw_torch",
        "max_length": 256,
    }
    moments, unknown = read.notes
    assert moments.endswith("fewer bits (they are float32): optim 'paged_adamw_8bit'")
    assert unknown.endswith("fields that TrainingArguments lack: eos_token '</s>'")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"optim": "galore_adamw"}, "optim is 'galore_adamw'; expected one of adamw_torch"),
        ({"lr_scheduler_type": "greedy"}, "greedy follows a metric.*use cosine_with_min_lr"),
        ({"optim": ["sgd"]}, "optim is .*expected a text"),
        ({"learning_rate": "fast"}, "learning_rate is text 'fast'"),
        ({"adam_beta1": 1.5, "seed": -1}, "2 field"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(tmp_path, content, said):
    with pytest.raises(InputRefused, match=said):
        read_training_args(written(tmp_path, content))


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputRefused, match=r"no\.json"):
        read_training_args(tmp_path / "no.json")
    with pytest.raises(InputRefused, match="JSON object"):
        read_training_args(written(tmp_path, [1]))
