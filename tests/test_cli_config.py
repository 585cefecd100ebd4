"""`dew config`: merged settings with their origins, and a schema that judges as the reader does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bridges.commands.finetune import COMMAND
from dew.cli.main import main
from dew.cli.options import parse
from dew.errors import InputRefused


@pytest.fixture(scope="module")
def schema() -> dict:
    run = subprocess.run(
        [sys.executable, "-m", "dew.cli.main", "config", "--schema"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


def lines_of(text: str) -> dict[str, tuple[str, str]]:
    """Return value and origin by name, as `dew config` prints them."""
    rows = [line.split(maxsplit=2) for line in text.splitlines()[1:]]
    return {name: (value, origin.strip()) for name, value, origin in rows}


def test_every_setting_is_shown_with_where_it_came_from(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("model: there\nlora_r: 4\nseed: 7\nmax_new_tokens: 3\n")
    assert main(["config", "--config", str(path), "--seed", "8", "--warmup-ratio", "0.1"]) == 0
    out, err = capsys.readouterr()
    found = lines_of(out)
    assert out.startswith("settings of dew finetune\n")
    assert list(found) == [option.name for option in COMMAND.options]
    assert found["seed"] == ("8", "flag")
    assert found["model_name_or_path"] == ("'there'", str(path))
    assert found["use_peft"] == ("True", "implied by lora_r")
    assert found["learning_rate"] == ("2e-05", "default")
    assert found["warmup_steps"] == ("0.1", "flag warmup_ratio")
    # A run would be refused; to look at its settings is not.
    assert "dataset_name is missing: give --dataset_name or --data" in err
    assert "output_dir is missing" not in err
    assert "not used by dew finetune: max_new_tokens" in err


def test_what_a_run_would_refuse_is_refused(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("sead: 7\n")
    assert main(["config", "--config", str(path), "--lerning-rate", "1"]) == 2
    message = capsys.readouterr().err
    assert "unknown key 'sead'" in message
    assert "did you mean 'seed'" in message
    assert "did you mean '--learning_rate'" in message


def test_another_commands_settings_are_shown_by_its_name(capsys):
    assert main(["config", "--command", "generate", "--model", "here"]) == 0
    out = capsys.readouterr().out
    assert lines_of(out)["model_name_or_path"] == ("'here'", "flag")
    assert "max_new_tokens" in out
    assert main(["config", "--command=generat"]) == 2
    assert "did you mean 'generate'" in capsys.readouterr().err


def test_help_lists_the_flags_of_both(capsys):
    assert main(["config", "--help", "schema"]) == 0
    text = capsys.readouterr().out
    assert "--schema" in text
    assert "--seed" not in text
    assert main(["config", "--help"]) == 0
    assert "--seed" in capsys.readouterr().out


def test_the_schema_names_every_setting_and_is_one(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    for option in COMMAND.options:
        described = schema["properties"][option.name]
        assert described["description"] == option.help
        value = described["default"]
        assert (tuple(value) if isinstance(value, list) else value) == option.default
        for alias in option.aliases:
            assert schema["properties"][alias]["$ref"] == f"#/properties/{option.name}"
    assert schema["properties"]["warmup_ratio"]["deprecated"]


def test_the_config_file_of_a_run_fits_the_schema(schema):
    import yaml

    from bridges.finetune.settings import settings_yaml

    words = ["--model", "m", "--data", "d", "--output", "o", "--lora_target_modules", "q_proj"]
    written = yaml.safe_load(settings_yaml(parse(COMMAND, words)))
    jsonschema.validate(written, schema)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 200),
    st.sampled_from([0.5, 2.0, -1.5, 1e300, 1e-5]),
    st.sampled_from(["linear", "steps", "none", "32K", "1m", "12", "1e3", "../up", "a-name", ""]),
    st.sampled_from([[], ["q_proj"], ["q_proj", "k_proj"], [1], {}]),
)
NAMES = st.sampled_from([name for option in COMMAND.options for name in option.spellings])
STRANGE = st.sampled_from(["sead", "warmup_ratio", "save_safetensors", "max_new_tokens"])


@given(st.dictionaries(NAMES | STRANGE, VALUES, max_size=3))
@example({"run_name": 2.0})
@example({"warmup_ratio": 0, "warmup_steps": 0})
@example({"warmup_steps": 0, "warmup_ratio": 0})
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_schema_accepts_what_the_reader_accepts(schema, tmp_path_factory, content):
    path: Path = tmp_path_factory.getbasetemp() / "drawn.yaml"
    path.write_text(json.dumps(content))
    flags = ["--model", "m", "--data", "d"]
    try:
        parse(COMMAND, [*flags, "--config", str(path)], elsewhere=["max_new_tokens"])
        read = True
    except InputRefused:
        read = False
    assert jsonschema.Draft202012Validator(schema).is_valid(content) == read
