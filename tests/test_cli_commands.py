"""`dew` finds its commands, keeps the exit statuses, and inspects without reading weights."""

import json
import subprocess
import sys
import warnings

import pytest
from helpers import llama_config, write_llama

from dew.cli import main as program
from dew.cli.command import Command
from dew.cli.main import main
from dew.errors import InputRefused


class Point:
    """An entry point of a command made for one test."""

    def __init__(self, function):
        self.name = "probe"
        module = sys.modules[__name__]
        module.probe_function = function
        self.command = Command("probe", "a probe", run=f"{__name__}:probe_function")

    def load(self):
        return self.command


@pytest.fixture
def probe(monkeypatch):
    def install(function):
        point = Point(function)
        monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
        monkeypatch.setattr(program, "entry_points", lambda group: [point])

    return install


def test_help_lists_every_command_of_the_package(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in ("env", "evaluate", "export", "finetune", "generate", "inspect"):
        assert f"  {name} " in text
    assert "not usable" not in text


def test_help_filters_by_a_word(capsys):
    assert main(["finetune", "--help", "lora"]) == 0
    text = capsys.readouterr().out
    assert "--lora_r" in text
    assert "--adam_beta1" not in text


def test_no_command_is_wrong_use(capsys):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out


def test_an_unknown_command_names_the_nearest(capsys):
    assert main(["fintune"]) == 2
    assert "'finetune'" in capsys.readouterr().err


def test_an_unknown_flag_names_the_nearest_and_exits_2(capsys):
    assert main(["inspect", "here", "--modle", "x"]) == 2
    assert "--model" in capsys.readouterr().err


def test_a_fine_command_exits_0(probe):
    probe(lambda settings: None)
    assert main(["probe"]) == 0


def test_a_refused_input_exits_2_with_one_message_and_no_traceback(probe, capsys):
    def refuse(settings):
        raise InputRefused("rows: found 0, expected some")

    probe(refuse)
    assert main(["probe"]) == 2
    assert capsys.readouterr().err == "dew: rows: found 0, expected some\n"


def test_a_failure_exits_1_and_debug_shows_the_traceback(probe, capsys):
    def fail(settings):
        raise RuntimeError("the disk is full")

    probe(fail)
    assert main(["probe"]) == 1
    plain = capsys.readouterr().err
    assert "the disk is full" in plain
    assert "Traceback" not in plain
    assert main(["probe", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_warning_is_one_line_without_a_place_in_the_code(probe, capsys):
    def warn(settings):  # pytest keeps warnings to itself, so this asks how one would look
        print(warnings.formatwarning("config.json: an odd key", UserWarning, "code.py", 7), end="")

    probe(warn)
    assert main(["probe"]) == 0
    assert capsys.readouterr().out == "dew: warning: config.json: an odd key\n"


def test_ctrl_c_exits_130(probe, capsys):
    def interrupt(settings):
        raise KeyboardInterrupt

    probe(interrupt)
    assert main(["probe"]) == 130


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from dew.cli.main import main; main(['--help']); main(['finetune', '--help']);"
        "print(sorted({'jax', 'torch', 'flax', 'transformers', 'pyarrow'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip().endswith("[]"), ran.stdout.splitlines()[-1]


def test_env_prints_a_block_to_copy(capsys):
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    for name in ("Python", "jax", "jaxlib", "Devices", "Memory"):
        assert f"- {name}: " in text


def test_inspect_counts_the_parameters(tmp_path, capsys):
    write_llama(tmp_path)
    # By hand from the config: table + 2 x (q, k, v, o, gate, up, down, two norms) + norm.
    per_layer = 32 * 32 * 2 + 2 * 16 * 32 + 3 * 64 * 32 + 2 * 32
    assert main(["inspect", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert f"{320 * 32 + 2 * per_layer + 32:,}" in text
    assert "llama" in text


def test_inspect_names_a_rope_that_transformers_4_would_not_see(tmp_path, capsys):
    write_llama(tmp_path)
    config = llama_config(rope_parameters={"rope_theta": 500000.0, "rope_type": "default"})
    del config["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["inspect", str(tmp_path)]) == 0
    assert "transformers 4 reads rope_theta 10000, transformers 5 reads 500000" in (
        capsys.readouterr().out
    )


def test_inspect_says_what_is_missing(tmp_path, capsys):
    write_llama(tmp_path, tokenizer=False)
    assert main(["inspect", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "no tokenizer.json" in text
    assert "no generation_config.json" in text


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": "many"},
        {"rope_theta": None},
        {"rope_parameters": [1]},
        {"rope_scaling": {"rope_type": 5, "rope_theta": {}}},
        {"eos_token_id": {}},
        {"architectures": 5},
        {"model_type": ["x"] * 1000},
        {"torch_dtype": [1]},
    ],
)
def test_inspect_survives_nonsense_in_a_config(tmp_path, change, capsys):
    write_llama(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(llama_config(**change)))
    assert main(["inspect", str(tmp_path)]) in (0, 2)


def test_inspect_of_nothing_exits_2(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "nowhere")]) == 2
    assert "no such file or folder" in capsys.readouterr().err
