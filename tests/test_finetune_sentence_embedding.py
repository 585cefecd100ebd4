"""Vectors of texts: the losses as sentence-transformers defines them, written out in torch."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from helpers import SENTENCES
from task_proof import hold_to_torch, learnt, loss_and_gradients, write_bert

from bridges.commands.finetune import COMMAND
from bridges.finetune.task_choice import task_of
from dew.cli.main import main
from dew.cli.options import parse
from dew.errors import InputRefused
from dew.objectives.base import Step
from dew.objectives.sentences import SCALE

pytestmark = pytest.mark.torch
ONE, TWO, THREE = SENTENCES[:4], SENTENCES[1:5], SENTENCES[::-1][:4]
PAIRS = [
    {"anchor": a, "positive": b[:30], "negative": c[:50]}
    for a, b, c in zip(ONE, TWO, THREE, strict=True)
]
SCORED = [
    {"sentence1": a, "sentence2": b, "score": score}
    for a, b, score in zip(ONE, TWO, (0.9, 0.1, 0.5, 0.5), strict=True)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_bert(tmp_path_factory.mktemp("bert"), "BertModel")
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def written(tmp_path, rows):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(rows))
    return path


def unit_vectors(model, given, number):
    """Return mean-pooled vectors of length 1 from transformers' states."""
    import torch

    mask = given[f"attention_mask_{number}"]
    states = model(input_ids=given[f"input_ids_{number}"], attention_mask=mask).last_hidden_state
    real = mask.unsqueeze(-1).to(states.dtype)
    return torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=1)


def ranking(model, given, dtype):
    import torch

    first, *others = (unit_vectors(model, given, number) for number in range(3))
    scores = 20.0 * first @ torch.cat(others).T
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))


def cosent(model, given, dtype):
    import torch

    first, second = (unit_vectors(model, given, number) for number in range(2))
    cosine, labels = 20.0 * (first * second).sum(1), given["labels"]
    gaps = cosine[:, None] - cosine[None, :]
    kept = gaps[labels[:, None] < labels[None, :]]
    return torch.logsumexp(torch.cat([torch.zeros(1, dtype=dtype), kept]), dim=0)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [ranking, cosent])
def test_the_first_loss_and_its_gradient_are_torchs(model, tmp_path, loss):
    rows = PAIRS if loss is ranking else SCORED
    made = learnt("sentence-embedding", model, written(tmp_path, rows))
    batch = made.batch(range(4))
    value, gradients = loss_and_gradients(made, batch)
    # A mean over tokens takes nothing from the pooler, which no vector is made of.
    named = {name.removeprefix("bert."): grad for name, grad in gradients.items()}
    kept = {name: grad for name, grad in named.items() if "pooler" not in name}
    hold_to_torch(made, model, batch, loss, ours=(value, kept), size=SCALE)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [PAIRS, SCORED])
def test_filler_rows_and_padding_change_nothing(model, tmp_path, rows):
    made = learnt("sentence-embedding", model, written(tmp_path, rows))
    few = made.batch(range(3))
    more = made.data.rows.take(np.array([0, 1, 2, 3]), tuple(48 for _ in made.data.rows.parts))
    more["weights"] = np.array([1, 1, 1, 0], np.float32)
    one, two = loss_and_gradients(made, few), loss_and_gradients(made, more)
    np.testing.assert_allclose(two[0], one[0], rtol=1e-5)
    for name, gradient in one[1].items():
        np.testing.assert_allclose(two[1][name], gradient, atol=1e-4, err_msg=name)


def test_evaluation_tells_cosines_as_the_bundle_makes_them(model, tmp_path):
    made = learnt("sentence-embedding", model, written(tmp_path, SCORED))
    batch = made.batch(range(4))
    step = Step(np.int32(0), jax.random.key(0))
    _, found = jax.jit(made.objective.evaluate)(made.bundle.variables, batch, step)
    vectors = [
        np.asarray(
            made.bundle(
                input_ids=batch[f"input_ids_{n}"], attention_mask=batch[f"attention_mask_{n}"]
            )["sentence_embedding"],
            np.float64,
        )
        for n in range(2)
    ]
    lengths = [np.linalg.norm(vector, axis=1) for vector in vectors]
    wanted = (vectors[0] * vectors[1]).sum(1) / (lengths[0] * lengths[1])
    np.testing.assert_allclose(found.outputs["cosine"], wanted, atol=1e-6)


def test_the_task_is_guessed_by_the_columns_of_the_data(model, tmp_path, capsys):
    words = ["--model", model, "--data", written(tmp_path, PAIRS), "--output_dir", "unused"]
    settings = parse(COMMAND, [str(word) for word in words])
    assert task_of(settings).name == "sentence-embedding"
    assert "by the columns of the data" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_learns_scores_and_keeps_the_files_of_sentence_transformers(model, tmp_path):
    data, out = written(tmp_path, SCORED), tmp_path / "out"
    words = ["finetune", model, "--data", data, "--output_dir", out, "--steps", 60, "--lr", 1e-3]
    words += ["--task", "sentence-embedding", "--eval_data", data, "--no_certify", "--quiet"]
    assert main([str(word) for word in words]) == 0
    assert json.loads((out / "eval_results.json").read_text())["eval_spearman"] > 0.9
    kinds = [part["type"] for part in json.loads((out / "modules.json").read_text())]
    assert kinds[-1] == "sentence_transformers.models.Pooling"
    assert json.loads((out / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"]


@pytest.mark.parametrize(
    ("rows", "flags", "message"),
    [
        ([{"sentence1": "a", "sentence2": "b", "score": "high"}] * 2, (), "is no number"),
        ([{"sentence1": "a", "sentence2": "b", "score": 1.0}] * 3, (), "all the same"),
        ([{"anchor": "a", "positive": "b"}], (), "one row alone"),
        ([{"anchor": "a", "positive": 3}] * 2, (), "is a int"),
        ([{"anchor": "a"}] * 2, (), "no column with texts that belong together"),
        (PAIRS, ("--text_column_names", "anchor"), "found 1"),
    ],
)
def test_data_that_cannot_be_learnt_is_refused(model, tmp_path, rows, flags, message):
    with pytest.raises(InputRefused, match=message):
        learnt("sentence-embedding", model, written(tmp_path, rows), *flags)
