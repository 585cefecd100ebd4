"""Tasks of model types without a native family: transformers' class for them, a head drawn anew."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from helpers import SENTENCES
from task_proof import hold_to_torch, learnt, write_t5, write_word_pieces

import bridges
from bridges.torch.checkpoint import TracedBundle
from bridges.torch.source_module import task_config
from dew.artifacts import Predictions
from dew.cli.main import main
from dew.errors import InputRefused
from dew.objectives.base import Step
from parity import random_models

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*no native family", "ignore:not in the checkpoint"),
]
ALBERT = {
    "model_type": "albert",
    "architectures": ["AlbertModel"],
    "vocab_size": 160,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.0,
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("DEW_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def albert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("albert")
    random_models.save_random(ALBERT, folder, seed=2)
    write_word_pieces(folder)
    return folder


@pytest.mark.slow
def test_a_bare_model_gets_the_head_of_the_task_and_names_it(albert):
    labels = ("foul", "fair", "so")
    with pytest.warns(UserWarning, match=r"drawn anew for training: classifier\.bias"):
        made = bridges.load(albert, task="token-classification", labels=labels)
    assert isinstance(made, TracedBundle)
    assert made.config["architectures"] == ["AlbertForTokenClassification"]
    ids = np.array([[2, 9, 3]])
    logits = np.asarray(made(input_ids=ids)["logits"])
    assert logits.shape == (1, 3, 3)
    again = bridges.load(albert, task="token-classification", labels=labels)
    np.testing.assert_array_equal(np.asarray(again(input_ids=ids)["logits"]), logits)


def test_a_type_without_a_class_for_the_task_is_refused():
    with pytest.raises(InputRefused, match="no class of model type 'albert' for text2text"):
        task_config(ALBERT, "text2text-generation")


@pytest.mark.slow
def test_a_run_trains_the_head_and_transformers_loads_it(albert, tmp_path):
    from transformers import AutoModelForSequenceClassification

    data, out = tmp_path / "train.json", tmp_path / "out"
    rows = [{"text": text, "label": ("foul", "fair")[n % 2]} for n, text in enumerate(SENTENCES)]
    data.write_text(json.dumps(rows))
    words = ["finetune", albert, "--data", data, "--output_dir", out, "--steps", 4, "--lr", 1e-2]
    words += ["--task", "text-classification", "--eval_data", data, "--no_certify", "--quiet"]
    assert main([str(word) for word in words]) == 0
    theirs, said = AutoModelForSequenceClassification.from_pretrained(out, output_loading_info=True)
    assert not said["missing_keys"]
    assert theirs.config.id2label == {0: "fair", 1: "foul"}
    ours = bridges.load(out)
    ids = np.array([[2, 17, 30, 41, 3]])
    import torch

    with torch.no_grad():
        wanted = theirs.eval()(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(np.asarray(ours(input_ids=ids)["logits"]), wanted, atol=1e-5)
    before = bridges.load(albert).variables["params"]["encoder.embedding_hidden_mapping_in.weight"]
    after = ours.variables["params"]["albert.encoder.embedding_hidden_mapping_in.weight"]
    assert not np.array_equal(np.asarray(before), np.asarray(after))


@pytest.mark.slow
def test_a_traced_writer_has_torchs_loss_and_writes_what_generate_writes(tmp_path):
    folder = write_t5(
        tmp_path / "mt5", model_type="mt5", architectures=["MT5ForConditionalGeneration"]
    )
    data = tmp_path / "train.json"
    pairs = zip(SENTENCES[:3], ("fair fog", "so foul and fair a day", "rain"), strict=True)
    data.write_text(json.dumps([{"input": one, "target": two} for one, two in pairs]))
    made = learnt("seq2seq", folder, data, "--predict_with_generate", "--max_target_length", 12)
    batch = made.batch(range(3))

    def loss(model, given, dtype):
        names = ("input_ids", "attention_mask", "labels")
        return model(**{name: given[name] for name in names}).loss

    hold_to_torch(made, folder, batch, loss)
    step = Step(np.int32(0), jax.random.key(0))
    scored = jax.jit(made.objective.evaluate)(made.bundle.variables, batch, step)
    (found,) = [part for part in scored if isinstance(part, Predictions)]
    ids = batch["input_ids"], batch["attention_mask"]
    wanted = made.bundle.generate(*ids, max_length=12)[:, 1:]
    written = np.asarray(found.outputs["written"])[:, : wanted.shape[1]]
    np.testing.assert_array_equal(written, wanted)
