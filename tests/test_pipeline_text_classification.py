"""text-classification gives transformers' dicts: labels, pairs, scores, containers, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pipeline_texts import LONG, TEXTS, Theirs, assert_same, compilations, write_encoder

import dew
from dew.errors import InputRefused, UnknownName

LABELS = ("negative", "neutral", "positive")
PAIR = {"text": "fair is foul", "text_pair": "and foul is fair"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Any:
    """A random BERT with three labels."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("bert")
    return write_encoder(folder, "BertForSequenceClassification", labels=LABELS)


@pytest.fixture(scope="module")
def task(folder: Any) -> Any:
    return dew.pipeline(folder)


@pytest.fixture(scope="module")
def theirs(folder: Any) -> Any:
    return Theirs("text-classification", folder)


def test_texts_of_all_kinds_get_transformers_labels(task: Any, theirs: Any) -> None:
    wanted = theirs(list(TEXTS))
    assert_same(task(list(TEXTS)), wanted)
    assert_same(task(TEXTS[0]), theirs(TEXTS[0]))


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        ("fair is foul", {"top_k": None}),
        ("fair is foul", {"top_k": 1}),
        (["fair is foul", "rain"], {"top_k": 2}),
        ("fair is foul", {"function_to_apply": "sigmoid", "top_k": None}),
        ("fair is foul", {"function_to_apply": "none", "top_k": 5}),
        (PAIR, {}),
        ([PAIR, PAIR], {"top_k": 2}),
        ([[["fair is foul", "and foul is fair"]]], {}),
        (LONG, {"truncation": True}),
        ({"text": LONG, "text_pair": "fog"}, {"truncation": "only_first", "max_length": 60}),
        ([], {}),
    ],
)
def test_options_are_those_of_transformers(
    task: Any, theirs: Any, inputs: Any, options: Any
) -> None:
    wanted = [] if inputs == [] else theirs(inputs, **options)
    assert_same(task(inputs, **options), wanted)


def test_a_generator_and_a_data_set_give_iterators(task: Any, theirs: Any) -> None:
    from transformers.pipelines.pt_utils import KeyDataset

    texts = list(TEXTS)
    wanted = theirs(texts)
    read: list[str] = []
    stream = task(read.append(text) or text for text in texts)
    assert not isinstance(stream, list)
    assert_same(next(stream), wanted[0])
    assert read == texts[:1]
    assert_same([wanted[0], *stream], wanted)
    column: Any = KeyDataset([{"text": text} for text in texts], "text")
    assert_same(list(task(column)), wanted)
    assert_same(list(task(np.array(texts, object))), wanted)


def test_defaults_of_a_task_hold_and_a_call_overrides_them(folder: Any, task: Any) -> None:
    made = dew.pipeline("sentiment-analysis", model=task.bundle, top_k=None, device=0)
    theirs = Theirs("sentiment-analysis", folder, top_k=None)
    assert_same(made("rain"), theirs("rain"))
    assert_same(made("rain", top_k=1), theirs("rain", top_k=1))


def test_problem_types_decide_what_is_applied(task: Any, theirs: Any, tmp_path: Any) -> None:
    one = write_encoder(tmp_path, "BertForSequenceClassification", num_labels=1)
    pairs = [(dew.pipeline(one), Theirs("text-classification", one)), (task, theirs)]
    for (made, their), problem in [
        (pairs[0], None),
        (pairs[0], "regression"),
        (pairs[1], "multi_label_classification"),
    ]:
        config = {**made.bundle.config, "problem_type": problem}
        ours = dew.pipeline(made.bundle.replace(config=config))
        before, their.pipe.model.config.problem_type = their.pipe.model.config.problem_type, problem
        assert_same(ours(TEXTS[0], top_k=None), their(TEXTS[0], top_k=None))
        their.pipe.model.config.problem_type = before


@pytest.mark.slow
def test_a_traced_model_gives_the_same(tmp_path: Any) -> None:
    folder = write_encoder(tmp_path, "AlbertForSequenceClassification", labels=LABELS)
    with pytest.warns(UserWarning, match="traced"):
        task = dew.pipeline(folder)
    inputs = ["fair is foul", "fog", PAIR]
    assert_same(task(inputs), Theirs("text-classification", folder)(inputs))


def test_512_lengths_compile_12_programs(tmp_path: Any) -> None:
    small = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8}
    folder = write_encoder(
        tmp_path, "BertForSequenceClassification", max_position_embeddings=512, **small
    )
    task = dew.pipeline(folder)
    with compilations() as compiled:
        for length in range(1, 511):  # and the two special tokens around them
            task("a " * length)
    assert 0 < len(compiled) <= 12


def test_typed_results_are_the_logits(task: Any) -> None:
    found = task.typed(["fog", "the king"])
    logits = np.asarray(found.outputs["logits"])
    assert logits.shape == (2, 3)
    raw = task("fog", function_to_apply="none", top_k=None)
    assert sorted(logits[0], reverse=True) == pytest.approx([one["score"] for one in raw])


def test_refusals_say_what_to_do(task: Any) -> None:
    with pytest.raises(InputRefused, match=r"2340 tokens long, the model has 64.*truncation=True"):
        task(LONG)
    with pytest.raises(InputRefused, match="expected a text"):
        task(3)
    with pytest.raises(InputRefused, match="a text is None"):
        task(["fog", None])
    with pytest.raises(InputRefused, match=r'"text_pair"'):
        task([["fog", "rain"]])
    with pytest.raises(InputRefused, match="column"):
        task({"sentence": "fog"})
    with pytest.raises(UnknownName, match="did you mean 'top_k'"):
        task("fog", topk=2)
    with pytest.raises(InputRefused, match="function_to_apply"):
        task("fog", function_to_apply="tanh")
    with pytest.raises(InputRefused, match="it is fit for text-classification"):
        dew.pipeline("fill-mask", model=task.bundle)
    with pytest.raises(UnknownName, match="text-classification"):
        dew.pipeline(task.bundle, "text-clasification")
    with pytest.raises(InputRefused, match="needs a tokenizer"):
        dew.pipeline(task.bundle.replace(processor=None))
    config = {**task.bundle.config, "id2label": {"0": "only"}}
    unnamed = dew.pipeline(task.bundle.replace(config=config))
    with pytest.raises(InputRefused, match="id2label has no name"):
        unnamed("fog")
    model = task.bundle.model.clone(vocab_size=9)
    small = dew.pipeline(task.bundle.replace(model=model))
    with pytest.raises(InputRefused, match="vocabulary is 9"):
        small("fog")
