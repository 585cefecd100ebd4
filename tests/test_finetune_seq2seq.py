"""Writing texts: labels, loss and training as transformers has them, and what is written."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from helpers import SENTENCES
from task_proof import BERT, hold_to_torch, learnt, loss_and_gradients, write_bert, write_t5

from dew.artifacts import Predictions
from dew.cli.main import main
from dew.errors import InputRefused
from dew.objectives.answers import AnswerObjective
from dew.objectives.base import Step
from parity import random_models

pytestmark = pytest.mark.torch
BART = {
    "model_type": "bart",
    "architectures": ["BartForConditionalGeneration"],
    "vocab_size": 160,
    "d_model": 32,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0),
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 3,
    "forced_eos_token_id": 3,
}
ROWS = [
    {"input": one, "target": other[:size]}
    for one, other, size in zip(SENTENCES, SENTENCES[1:], (50, 9, 30, 22), strict=False)
]


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return write_t5(tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def bart(tmp_path_factory, t5):
    folder = tmp_path_factory.mktemp("bart")
    random_models.save_random(BART, folder, seed=4)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((t5 / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "train.json"
    path.write_text(json.dumps(ROWS))
    return path


def theirs(model, batch, dtype):
    given = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    return model(**given).loss  # it shifts the labels itself


@pytest.mark.parametrize("family", ["t5", pytest.param("bart", marks=pytest.mark.slow)])
def test_the_first_loss_and_its_gradient_are_transformers(family, data, request):
    folder = request.getfixturevalue(family)
    made = learnt("seq2seq", folder, data)
    batch = made.batch(range(4))
    hold_to_torch(made, folder, batch, theirs)


@pytest.mark.slow
def test_the_loss_does_not_depend_on_the_chunk_or_the_padding(t5, data):
    made = learnt("seq2seq", t5, data)
    whole = loss_and_gradients(made, made.batch(range(4)))
    wide = made.data.rows.take(np.arange(4), (48, 40))
    objective = AnswerObjective(made.bundle.model, chunk=7)

    class Chunked:
        bundle = made.bundle

    Chunked.objective = objective
    chunked = loss_and_gradients(Chunked, made.batch(range(4)))
    for other in (chunked, loss_and_gradients(made, wide)):
        np.testing.assert_allclose(other[0], whole[0], rtol=1e-6)
        for name, gradient in whole[1].items():
            np.testing.assert_allclose(other[1][name], gradient, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["t5", "bart"])
def test_evaluation_writes_what_generate_writes(family, data, request):
    made = learnt("seq2seq", request.getfixturevalue(family), data, "--predict_with_generate")
    batch = made.batch(range(4))
    step = Step(np.int32(0), jax.random.key(0))
    scored = jax.jit(made.objective.evaluate)(made.bundle.variables, batch, step)
    (found,) = [part for part in scored if isinstance(part, Predictions)]
    limit = made.bundle.model.position_limit or 128
    wanted = made.bundle.generate(
        batch["input_ids"], batch["attention_mask"], max_length=min(128, limit)
    )[:, 1:]
    written = np.asarray(found.outputs["written"])
    assert len({tuple(row) for row in wanted.tolist()}) > 1
    np.testing.assert_array_equal(written[:, : wanted.shape[1]], wanted)
    assert (written[:, wanted.shape[1] :] == 0).all()


@pytest.mark.slow
def test_a_run_learns_to_write_and_scores_it(t5, data, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["finetune", t5, "--data", data, "--output_dir", out, "--steps", 150, "--lr", 5e-3]
    words += ["--per_device_train_batch_size", 4, "--eval_data", data, "--predict_with_generate"]
    words += ["--no_certify", "--quiet", "--max_target_length", 32]
    assert main([str(word) for word in words]) == 0
    assert "task: seq2seq" in capsys.readouterr().err
    scores = json.loads((out / "eval_results.json").read_text())
    # Four texts learnt by heart.
    assert scores["eval_rouge1"] > 0.9
    assert scores["eval_rougeL"] > 0.9
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["T5ForConditionalGeneration"]


def test_a_prefix_and_a_column_of_translations_are_read(t5, tmp_path):
    path = tmp_path / "translations.json"
    rows = [{"translation": {"en": row["input"], "de": row["target"]}} for row in ROWS]
    path.write_text(json.dumps(rows))
    words = ("--source_lang", "en", "--target_lang", "de", "--source_prefix", "fair: ")
    made = learnt("seq2seq", t5, path, *words)
    assert made.examples.train["source"][0] == "fair: " + ROWS[0]["input"]
    assert made.examples.train["target"][1] == ROWS[1]["target"]


@pytest.mark.parametrize(
    ("rows", "flags", "message"),
    [
        ([{"translation": {"en": "a", "de": "b"}}], (), "source_lang and --target_lang"),
        (
            [{"translation": {"en": "a", "de": "b"}}],
            ("--source_lang", "en", "--target_lang", "fr"),
            "no translation has the key 'fr'",
        ),
        ([{"input": "a", "target": None}], (), "no row has both"),
        ([{"input": "a", "target": 3}], (), "is a int"),
        ([{"input": "a"}], (), "no column with a source and one with its target"),
        (ROWS, ("--text_column_names", "input,goal"), "no column 'goal'"),
    ],
)
def test_data_that_cannot_be_learnt_is_refused(t5, tmp_path, rows, flags, message):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(rows))
    with pytest.raises(InputRefused, match=message):
        learnt("seq2seq", t5, path, *flags)


def test_a_model_without_a_decoder_is_refused(tmp_path, data):
    assert BERT["model_type"] == "bert"
    folder = write_bert(tmp_path / "bert", "BertForMaskedLM")
    with pytest.raises(InputRefused, match="needs an encoder and a decoder"):
        learnt("seq2seq", folder, data)
