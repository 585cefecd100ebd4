"""`datasets:` of a run's YAML: several sources by their keys, kept in the run's config.yaml.

Right values: the rows themselves, one source after another, and `dew config`'s own schema.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers import SENTENCES, write_lines, write_llama

import bridges
from bridges.commands.evaluate import COMMAND as EVALUATE
from bridges.commands.evaluate import evaluated
from bridges.commands.finetune import COMMAND
from bridges.data.mixtures import KEYS
from bridges.finetune.data import most_tokens, open_data
from bridges.finetune.examples import sides
from bridges.finetune.learner import learner_of
from bridges.finetune.settings import SOURCE_KEYS, settings_yaml
from bridges.finetune.task_choice import task_of
from dew.cli.main import main
from dew.cli.options import parse, settings_from
from dew.cli.schema import json_schema
from dew.errors import InputRefused


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("datasets")
    write_llama(root / "model")
    write_lines(root / "plain.jsonl", SENTENCES)
    write_lines(root / "other.jsonl", [text.upper() for text in SENTENCES * 4], field="words")
    return root


def written(folder: Path, *parts: dict[str, Any], **others: Any) -> Path:
    """Write a configuration and return its path."""
    path = folder / "run.yaml"
    named = {"model": str(folder / "model"), "datasets": list(parts), **others}
    path.write_text(json.dumps(named))
    return path


def two(folder: Path) -> tuple[dict[str, Any], ...]:
    return (
        {"path": str(folder / "plain.jsonl")},
        {"path": str(folder / "other.jsonl"), "columns": {"words": "text"}, "fraction": 0.25},
    )


def test_the_keys_are_those_of_mixtures():
    assert SOURCE_KEYS == KEYS


def test_sources_follow_one_another_with_their_columns_and_shares(folder):
    path = written(folder, *two(folder), seed=3)
    settings = parse(COMMAND, ["--config", str(path)])
    train, held = sides(settings)
    texts = train.column("text")
    assert held is None
    assert texts[: len(SENTENCES)] == list(SENTENCES)
    assert len(texts) == 2 * len(SENTENCES)
    assert set(texts[len(SENTENCES) :]) <= {text.upper() for text in SENTENCES}
    assert task_of(settings).name == "causal-lm"


def test_texts_of_all_sources_become_rows(folder):
    settings = parse(COMMAND, ["--config", str(written(folder, *two(folder)))])
    learner = learner_of(bridges.load(settings["model_name_or_path"]))
    data = open_data(settings, learner, seq_len=63, rows=2)
    assert data.report.documents == 2 * len(SENTENCES)
    text = "".join(learner.bundle.tokenizer.decode(row.tolist()) for row in data.rows.tokens)
    assert SENTENCES[0] in text


def test_the_runs_own_file_reads_back_and_fits_the_schema(folder, tmp_path):
    settings = parse(COMMAND, ["--config", str(written(folder, *two(folder)))])
    again = tmp_path / "config.yaml"
    again.write_text(settings_yaml(settings))
    assert parse(COMMAND, ["--config", str(again)]).values == settings.values
    schema = json_schema(COMMAND)
    jsonschema.validate({"model": "m", "datasets": list(two(folder))}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"datasets": [{"pth": "a"}]}, schema)
    flag = parse(COMMAND, ["--model", "m", "--datasets", '[{"path": "a", "fraction": 0.5}]'])
    assert flag["datasets"] == ({"path": "a", "fraction": 0.5},)


def test_parts_that_share_a_list_are_written_without_anchors(folder, tmp_path):
    """YAML would write a shared list as an anchor, which a configuration may not hold."""
    columns = ["text"]
    parts = [{"path": str(folder / "plain.jsonl"), "columns": columns} for _ in range(2)]
    settings = settings_from(COMMAND, {"model": "m", "datasets": parts}, "the arguments")
    assert "&" not in settings_yaml(settings)


def test_evaluate_takes_them_from_the_runs_file_unless_a_flag_names_data(folder):
    path = written(folder, *two(folder), eval_split=0.5)
    told, held, named = evaluated(parse(EVALUATE, ["--config", str(path)]))
    assert told.startswith("0.5 of ")
    assert "other.jsonl" in told
    assert held
    assert len(named["datasets"]) == 2
    words = ["--config", str(path), "--data", str(folder / "plain.jsonl")]
    told, held, named = evaluated(parse(EVALUATE, words))
    assert told == str(folder / "plain.jsonl")
    assert not held
    assert named["datasets"] == ()


@pytest.mark.parametrize(
    ("parts", "others", "message"),
    [
        ([{"pth": "a"}], {}, "the key 'pth' is not known.*did you mean 'path'"),
        (["a"], {}, "expected a list of mappings"),
        ([{"name": "a"}], {}, "part 1: no path"),
        ([{"path": "{plain}", "fraction": 2}], {}, "a share above 0"),
        ([{"path": "{plain}"}, {"path": "{other}"}], {}, "no column 'text'"),
        ([{"path": "{plain}"}], {"data": "b"}, "give one of them"),
        ([{"path": "{plain}"}], {"dataset_streaming": True}, "cannot be streamed"),
        ([], {"data": ""}, "dataset_name is missing"),
    ],
)
def test_what_cannot_be_read_is_refused_before_the_first_step(
    folder, tmp_path, capsys, parts, others, message
):
    places = {"{plain}": "plain.jsonl", "{other}": "other.jsonl"}
    for part in parts:
        if isinstance(part, dict) and part.get("path") in places:
            part["path"] = str(folder / places[part["path"]])
    path = written(folder, *parts, max_steps=1, **others)
    assert main(["finetune", "--config", str(path), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error, re.DOTALL), error
    assert not (tmp_path / "out" / "log.jsonl").exists()


def test_a_runs_file_may_repeat_the_default_length_for_a_model_of_fewer_positions(folder):
    """So `dew evaluate --config out/config.yaml` goes on where the run itself was shortened."""
    words = ["--model", str(folder / "model"), "--data", str(folder / "plain.jsonl")]
    learner = learner_of(bridges.load(folder / "model"))
    path = folder / "default.yaml"
    path.write_text(settings_yaml(parse(COMMAND, words)))
    assert "max_length: 1024" in path.read_text()
    assert most_tokens(parse(COMMAND, ["--config", str(path)]), learner) == 64
    with pytest.raises(InputRefused, match="give --max_length 64"):
        most_tokens(parse(COMMAND, [*words, "--max_length", "1024"]), learner)
