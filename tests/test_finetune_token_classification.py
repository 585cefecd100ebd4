"""Tagging words: labels at the first pieces, entities as seqeval counts them, torch's loss."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file
from task_proof import hold_to_torch, learnt, write_bert

from dew.artifacts import Predictions
from dew.cli.main import main
from dew.errors import InputRefused
from dew.evaluation.entity_scores import EntityScore, entities

pytestmark = pytest.mark.torch
NAMES = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
ROWS = [
    {"tokens": ["Tomorrow", "fair", "Macbeth", "meets"], "tags": ["O", "O", "B-PER", "O"]},
    {"tokens": ["The", "filthy", "air", "of", "Forres"], "tags": ["O", "B-LOC", "I-LOC", "O", "O"]},
    {"tokens": ["Hover", "in", "rain"], "tags": ["B-PER", "O", "B-LOC"]},
    {"tokens": ["Foul", "day", "thunder"], "tags": ["B-PER", "I-PER", "O"]},
]
STYLES = {
    "IOB2": ["B-PER", "I-PER", "B-LOC", "I-LOC", "O"],
    "IOB1": ["I-PER", "I-LOC", "B-PER", "O"],
    "IOBES": ["B-PER", "I-PER", "E-PER", "S-PER", "S-LOC", "E-LOC", "I-LOC", "B-LOC", "O"],
    "mixed": ["B-PER", "E-LOC", "I-A-B", "S-PER", "O", "O", "B", "I", ".-X"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_bert(tmp_path_factory.mktemp("tagger"), "BertForTokenClassification", NAMES)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("tags") / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("style", STYLES)
def test_entity_scores_are_seqevals(style):
    metrics = pytest.importorskip("seqeval.metrics")
    names, draws = STYLES[style], np.random.default_rng(len(style))
    rows = [draws.integers(0, len(names), (2, length)) for length in (1, 4, 7, 12, 30, 30)]
    right = [[names[tag] for tag in row[0]] for row in rows]
    taken = [[names[tag] for tag in row[1]] for row in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = {
            "precision": metrics.precision_score(right, taken),
            "recall": metrics.recall_score(right, taken),
            "f1": metrics.f1_score(right, taken),
            "accuracy": metrics.accuracy_score(right, taken),
        }
    for kind, value in wanted.items():
        score = EntityScore(kind, tuple(names))
        total = None
        for row in rows:  # batch by batch, with padding that must not count
            labels = np.pad(row[0], (0, 3), constant_values=-100)[None]
            logits = np.pad(np.eye(len(names))[row[1]], ((0, 3), (0, 0)), constant_values=9)[None]
            part = score(Predictions({"logits": logits}, np.ones(labels.shape)), {"labels": labels})
            total = part if total is None else score.merge(total, part)
        np.testing.assert_allclose(score.finalize(total), value, rtol=1e-12, err_msg=kind)


def test_an_entity_does_not_cross_from_one_text_to_the_next():
    apart = entities([np.array([0]), np.array([1])], ("B-PER", "I-PER"))
    assert len(apart) == 2
    assert len(entities([np.array([0, 1])], ("B-PER", "I-PER"))) == 1


@pytest.mark.parametrize("every", [False, True])
def test_labels_stand_where_transformers_example_puts_them(model, data, every):
    from transformers import AutoTokenizer

    flags = ("--label_all_tokens",) if every else ()
    made = learnt("token-classification", model, data, *flags)
    batch = made.batch(range(4))
    tokenizer = AutoTokenizer.from_pretrained(model)
    theirs = tokenizer([row["tokens"] for row in ROWS], is_split_into_words=True)
    for place, row in enumerate(ROWS):
        ids = theirs["input_ids"][place]
        assert batch["input_ids"][place, : len(ids)].tolist() == ids
        wanted, before = [], None
        for word in theirs.word_ids(place):
            tag = None if word is None else row["tags"][word]
            later = tag if tag is None else tag.replace("B-", "I-")
            label = tag if word != before else (later if every else None)
            wanted.append(-100 if word is None or label is None else NAMES.index(label))
            before = word
        assert batch["labels"][place, : len(ids)].tolist() == wanted
        assert (batch["labels"][place, len(ids) :] == -100).all()


@pytest.fixture
def two_threads():
    """Let torch compute in two threads, as it does here by itself, whatever tests ran before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_first_loss_and_its_gradient_are_transformers(model, data, two_threads):
    # One number is judged beside the gradients, the loss. In a single thread torch's happens to be
    # within a twentieth of an ulp of the truth, where dew's, 3.5 ulps off, is a tenth too far.
    made = learnt("token-classification", model, data)

    def loss(theirs, batch, dtype):
        return theirs(**batch).loss

    hold_to_torch(made, model, made.batch(range(4)), loss)


@pytest.mark.slow
def test_a_run_learns_and_writes_a_tagger(model, data, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["finetune", model, "--data", data, "--output_dir", out, "--steps", 120, "--lr", 3e-3]
    words += ["--per_device_train_batch_size", 4, "--eval_data", data, "--eval_on_start"]
    words += ["--no_certify", "--quiet"]
    assert main([str(word) for word in words]) == 0
    assert "task: token-classification" in capsys.readouterr().err
    scores = json.loads((out / "eval_results.json").read_text())
    # Four sentences, learnt by heart.
    assert scores["eval_f1"] == 1.0
    assert scores["eval_accuracy"] == 1.0
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert tuple(config["id2label"].values()) == NAMES


@pytest.mark.slow
def test_an_adapter_is_trained_with_the_head_beside_it(model, data, tmp_path):
    out = tmp_path / "out"
    words = ["finetune", model, "--data", data, "--output_dir", out, "--steps", 6, "--lr", 1e-2]
    words += ["--use_peft", "--lora_r", 4, "--no_certify", "--quiet", "--eval_data", data]
    assert main([str(word) for word in words]) == 0
    written = load_file(out / "adapter_model.safetensors")
    assert any("lora_B" in name and np.any(value) for name, value in written.items())
    assert any("classifier" in name for name in written)
    config = json.loads((out / "merged" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"tokens": ["a", "b"], "tags": ["O"]}], "2 words and 1 tags"),
        ([{"tokens": ["a"], "tags": ["X"]}], "1 class"),
        ([{"tokens": "a b", "tags": ["O"]}], "is no list"),
        ([{"words": ["a"], "sorts": ["O"]}], "no column with lists of tags"),
        ([{"tokens": ["a"], "tags": [-1]}, {"tokens": ["a"], "tags": [0]}], "label -1"),
        ([{"tokens": [], "tags": []}], "no row has a label"),
    ],
)
def test_data_that_cannot_be_learnt_is_refused(model, tmp_path, rows, message):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(rows))
    with pytest.raises(InputRefused, match=message):
        learnt("token-classification", model, path)
