"""Flags, the configuration file and defaults merge as the documents say, and refuse as one."""

import os

import pytest

from dew.cli.command import Command, Former, Option, check_name
from dew.cli.config_file import read_config
from dew.cli.help import command_help
from dew.cli.options import parse
from dew.errors import InputRefused

COMMAND = Command(
    "train",
    "a command for these tests",
    (
        Option("model_name_or_path", "text", None, "the model", ("model",), positional=True),
        Option("per_device_train_batch_size", "integer", 8, "rows", low=1),
        Option("max_steps", "integer", -1, "updates", ("steps",), low=-1),
        Option("learning_rate", "number", 2e-5, "peak rate", low=0),
        Option("warmup_steps", "number", 0, "updates, or a share below 1", low=0),
        Option("eval_strategy", "text", "no", "when", choices=("no", "steps", "epoch")),
        Option("packing", "switch", False, "pack rows"),
        Option("use_peft", "switch", False, "train an adapter"),
        Option("lora_r", "integer", 16, "rank", ("lora_rank",), low=1, implies={"use_peft": True}),
        Option("lora_target_modules", "texts", (), "modules"),
        Option("run_name", "text", None, "name", pathless=True),
    ),
    formers=(
        Former("warmup_ratio", "warmup_steps", "now warmup_steps"),
        Former("evaluation_strategy", "eval_strategy", "now eval_strategy"),
        Former("overwrite_output_dir", None, "no effect any more"),
    ),
)


def settings(*argv: str):
    return parse(COMMAND, argv)


def refusal(*argv: str) -> str:
    with pytest.raises(InputRefused) as caught:
        parse(COMMAND, argv)
    return str(caught.value)


@pytest.fixture
def config(tmp_path):
    def write(text: str | bytes, name: str = "run.yaml") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


@pytest.mark.parametrize("flag", ["--per_device_train_batch_size", "--per-device-train-batch-size"])
@pytest.mark.parametrize("form", ["{}=4", "{} 4"])
def test_dashes_and_underscores_are_alike(flag, form):
    assert settings(*form.format(flag).split())["per_device_train_batch_size"] == 4


def test_an_alias_sets_the_canonical_name():
    assert settings("--model", "m", "--steps", "7")["max_steps"] == 7
    assert settings("--model", "m")["model_name_or_path"] == "m"


def test_the_model_may_be_positional():
    assert settings("m", "--steps", "7")["model_name_or_path"] == "m"
    assert settings("--packing", "m")["packing"] is True
    assert settings("--packing", "m")["model_name_or_path"] == "m"


@pytest.mark.parametrize(
    ("text", "value"),
    [("32K", 32 * 1024), ("32k", 32_000), ("1m", 10**6), ("1M", 2**20), ("12", 12), ("-1", -1)],
)
def test_integers_take_suffixes_as_vllm_reads_them(text, value):
    assert settings("--max_steps", text)["max_steps"] == value


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--packing"], True),
        (["--packing", "false"], False),
        (["--packing=True"], True),
        (["--no_packing"], False),
        (["--no-packing"], False),
        ([], False),
    ],
)
def test_a_switch_reads_every_habitual_spelling(words, value):
    assert settings(*words)["packing"] is value


def test_flags_win_over_the_file_and_the_file_over_defaults(config):
    path = config("max_steps: 5\nlearning-rate: 1e-4\npacking: true\n")
    merged = settings("--config", path, "--steps", "9")
    assert (merged["max_steps"], merged.origins["max_steps"]) == (9, "flag")
    assert (merged["learning_rate"], merged.origins["learning_rate"]) == (1e-4, path)
    assert merged.origins["per_device_train_batch_size"] == "default"
    printed = "\n".join(merged.lines())
    assert "learning_rate" in printed
    assert path in printed


def test_a_rank_implies_an_adapter_unless_it_is_refused(config):
    assert settings("--lora-rank", "4")["use_peft"] is True
    assert settings("--lora_r", "4").origins["use_peft"] == "implied by lora_r"
    assert settings("--lora_r", "4", "--use_peft", "false")["use_peft"] is False
    assert settings()["use_peft"] is False


def test_lists_take_spaces_and_commas(config):
    wanted = ("q_proj", "v_proj")
    assert settings("--lora_target_modules", "q_proj", "v_proj")["lora_target_modules"] == wanted
    assert settings("--lora_target_modules", "q_proj,v_proj")["lora_target_modules"] == wanted
    path = config("lora_target_modules: [q_proj, v_proj]\n")
    assert settings("--config", path)["lora_target_modules"] == wanted


def test_removed_names_are_taken_with_a_line_that_names_the_new_one():
    merged = settings("--warmup_ratio", "0.1", "--evaluation-strategy", "steps")
    assert merged["warmup_steps"] == 0.1
    assert merged["eval_strategy"] == "steps"
    assert any("warmup_steps" in note for note in merged.notes)
    assert settings("--overwrite_output_dir").notes == ("overwrite_output_dir: no effect any more",)


def test_no_flag_is_abbreviated():
    assert "--learning_rate" in refusal("--learning", "1")


def test_every_wrong_flag_is_in_one_message_with_the_nearest_name():
    message = refusal("--lerning-rate", "1", "--max_steps", "many", "--eval_strategy", "step")
    assert "--learning_rate" in message
    assert "max_steps is 'many'" in message
    assert "'steps'" in message


def test_bp089_wrong_values_and_an_unknown_key_are_one_error(config):
    path = config('{"learning_rate": NaN, "max_steps": "1e3", "lerning_rate": 1}', "run.json")
    message = refusal("--config", path)
    assert "learning_rate is nan" in message
    assert "max_steps is text '1e3'" in message
    assert "'learning_rate'" in message.split("lerning_rate")[1]


def test_yaml_rates_without_a_point_are_numbers(config):
    # PyYAML alone reads `2e-5` as text, as YAML 1.1 did.
    assert settings("--config", config("learning_rate: 2e-5\n"))["learning_rate"] == 2e-5
    assert settings("--config", config("max_steps: 1e3\n"))["max_steps"] == 1000
    assert settings("--config", config("max_steps: 32K\n"))["max_steps"] == 32768


@pytest.mark.parametrize(
    "text",
    [
        "learning_rate: .nan",
        "learning_rate: .inf",
        "learning_rate: true",
        "learning_rate: -1",
        "learning_rate: []",
        "max_steps: 1.5",
        "max_steps: '100'",
        "max_steps: [1]",
        "packing: 'yes please'",
        "packing: 1",
        "per_device_train_batch_size: 0",
        "per_device_train_batch_size:",
        "model_name_or_path: {a: 1}",
        "lora_target_modules: {a: 1}",
        "lora_target_modules: [1]",
        "max_steps: 1\nmax_steps: 2",
        "max_steps: 1\nsteps: 2",
        "1: 2",
        "- a\n- b",
        "a: [",
        "\t",
        "a: 1\n---\nb: 2",
        b"\xff\xfe\x00",
        b"a: \x01",
        "a: 2024-13-45",
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(config, text):
    assert refusal("--config", config(text))


def test_bp086_a_tag_is_refused_and_builds_nothing(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = config("run_name: !!python/object/apply:os.system ['touch CANARY']\n")
    assert "tag" in refusal("--config", path)
    assert not (tmp_path / "CANARY").exists()


def test_bp087_anchors_and_aliases_are_refused_before_anything_is_built(config):
    laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{i}: &a{i} [" + ",".join([f"*a{i - 1}"] * 10) + "]\n" for i in range(1, 10)
    )
    assert "anchors" in refusal("--config", config(laughs))


def test_deep_nesting_is_refused_without_recursion(config):
    assert "nested deeper" in refusal("--config", config("[" * 100_000))


@pytest.mark.parametrize(
    "name", ["../../evil", "a/../../b", "/", "", ".hidden", "-rf", "a" * 101, "a b", "a\n", "é"]
)
def test_bp088_a_run_name_cannot_leave_its_folder(name, config):
    assert "run_name" in refusal(f"--run_name={name}")
    with pytest.raises(InputRefused):
        check_name(name, "group")


def test_bp088_ordinary_run_names_pass():
    assert settings("--run_name", "Shakespeare-135M_v1.2")["run_name"] == "Shakespeare-135M_v1.2"


def test_a_missing_file_is_named():
    assert "nowhere.yaml" in refusal("--config", "nowhere.yaml")


def test_an_empty_file_is_an_empty_configuration(config):
    assert read_config(config("")) == {}


def test_keys_of_other_commands_are_noted_and_left_out(config):
    path = config("max_steps: 5\ntop_p: 0.9\n")
    merged = parse(COMMAND, ["--config", path], elsewhere=["top_p"])
    assert merged["max_steps"] == 5
    assert any("top_p" in note for note in merged.notes)


def test_help_filters_by_word():
    text = command_help(COMMAND, "lora")
    assert "--lora_r" in text
    assert "--learning_rate" not in text
    assert "--learning_rate" in command_help(COMMAND)


def test_a_pipe_in_the_place_of_a_configuration_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "run.yaml")
    with pytest.raises(InputRefused, match="not a regular file"):
        read_config(tmp_path / "run.yaml")
