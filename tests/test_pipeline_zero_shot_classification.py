"""zero-shot-classification gives transformers' dicts: labels, templates, several that fit."""

from __future__ import annotations

from typing import Any

import pytest
from pipeline_texts import LONG, TEXTS, Theirs, assert_same, compilations, write_encoder

import dew
from dew.errors import InputRefused

LABELS = ("contradiction", "neutral", "ENTAILMENT")
CANDIDATES = ["politics", "sport", "the weather", "\N{GRINNING FACE}"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: Any) -> Any:
    """A task and transformers' own."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("judge")
    write_encoder(folder, "BertForSequenceClassification", labels=LABELS)
    name = "zero-shot-classification"
    return dew.pipeline(name, model=folder), Theirs(name, folder)


def test_texts_of_all_kinds_get_transformers_labels(pair: Any) -> None:
    task, theirs = pair
    texts = [*TEXTS[1:], LONG]
    wanted = theirs(texts, candidate_labels=CANDIDATES)
    assert_same(task(texts, candidate_labels=CANDIDATES), wanted)
    assert_same(task(texts[0], CANDIDATES), wanted[0])


@pytest.mark.parametrize(
    "options",
    [
        {"candidate_labels": "politics, sport,weather"},
        {"candidate_labels": CANDIDATES, "multi_label": True},
        {"candidate_labels": "sport"},
        {"candidate_labels": ["sport"], "multi_label": True},
        {"candidate_labels": CANDIDATES, "hypothesis_template": "who {}?"},
        {"candidate_labels": CANDIDATES, "hypothesis_template": "what" + " fog" * 50 + " {}"},
    ],
)
def test_options_are_those_of_transformers(pair: Any, options: Any) -> None:
    task, theirs = pair
    assert_same(task("fair is foul", **options), theirs("fair is foul", **options))


@pytest.mark.slow
def test_the_label_of_entailment_is_found_wherever_it_stands(pair: Any, tmp_path: Any) -> None:
    del pair
    labels = ("entailment", "neutral", "contradiction")
    folder = write_encoder(tmp_path, "BertForSequenceClassification", labels=labels, seed=5)
    for many in (False, True):
        task = dew.pipeline("zero-shot-classification", model=folder, multi_label=many)
        theirs = Theirs("zero-shot-classification", folder, multi_label=many)
        assert_same(task("fog", CANDIDATES), theirs("fog", CANDIDATES))


def test_refusals_say_what_to_do(pair: Any) -> None:
    task, _ = pair
    with pytest.raises(InputRefused, match="pass candidate_labels"):
        task("fog")
    with pytest.raises(InputRefused, match="at least one label"):
        task("fog", candidate_labels=[])
    with pytest.raises(InputRefused, match="hypothesis_template"):
        task("fog", CANDIDATES, hypothesis_template="no place")
    with pytest.raises(InputRefused, match="a text is empty"):
        task("", CANDIDATES)
    with pytest.raises(InputRefused, match="a text is 3"):
        task([3], CANDIDATES)
    config = {**task.bundle.config, "label2id": {"good": 0, "bad": 1, "so": 2}}
    with pytest.raises(InputRefused, match="none of them entailment"):
        dew.pipeline("zero-shot-classification", model=task.bundle.replace(config=config))
    shape = task.typed(["fog", "rain"], candidate_labels=CANDIDATES).outputs["logits"].shape
    assert shape == (2, 4, 3)


def test_what_was_warmed_up_compiles_no_more(pair: Any) -> None:
    task, _ = pair
    fresh = dew.pipeline("text-classification", model=task.bundle.replace())
    fresh.warm_up(16)
    with compilations() as compiled:
        for text in ("", "fog", "fair is foul and foul is fair"):
            fresh(text)
    assert not compiled
