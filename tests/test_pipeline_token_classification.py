"""token-classification gives transformers' dicts, by every way of putting tokens together."""

from __future__ import annotations

from typing import Any

import pytest
from pipeline_texts import LONG, TEXTS, Theirs, assert_same, write_encoder

import dew
from dew.errors import InputRefused

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC")
STRATEGIES = ("none", "simple", "first", "average", "max")
CLASSES = ("BertForTokenClassification", "RobertaForTokenClassification")


@pytest.fixture(scope="module", params=CLASSES)
def pair(request: Any, tmp_path_factory: Any) -> Any:
    """A task and transformers' own, of word pieces and of bytes."""
    pytest.importorskip("torch")
    folder = write_encoder(tmp_path_factory.mktemp("tagger"), request.param, labels=LABELS)
    return dew.pipeline(folder), Theirs("token-classification", folder)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_texts_get_transformers_entities(pair: Any, strategy: str) -> None:
    task, theirs = pair
    texts = [*TEXTS, LONG]
    wanted = theirs(texts, aggregation_strategy=strategy)
    assert_same(task(texts, aggregation_strategy=strategy), wanted)
    assert_same(task(texts[2], aggregation_strategy=strategy), wanted[2])
    assert any(one for one in wanted)


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_long_texts_are_read_in_windows(pair: Any, strategy: str) -> None:
    task, theirs = pair
    options = {"stride": 7, "aggregation_strategy": strategy}
    assert_same(task(LONG[:900], **options), theirs(LONG[:900], **options))


def test_words_labels_and_offsets_are_those_of_transformers(pair: Any) -> None:
    task, theirs = pair
    words = ["fogs", "in", "Scotland", "\N{GRINNING FACE}", "hurlyburly's", "king"]
    for options in (
        {},
        {"aggregation_strategy": "first"},
        {"delimiter": "_", "aggregation_strategy": "simple"},
    ):
        for given in (words, [words[:2], words]):
            found = task(given, is_split_into_words=True, **options)
            assert_same(found, theirs(given, is_split_into_words=True, **options))
    for ignored in ([], ["O", "PER", "B-PER"]):
        options = {"ignore_labels": ignored}
        assert_same(task(TEXTS[2], **options), theirs(TEXTS[2], **options))
        options["aggregation_strategy"] = "simple"
        assert_same(task(TEXTS[2], **options), theirs(TEXTS[2], **options))


def test_defaults_of_a_task_hold(pair: Any) -> None:
    task, theirs = pair
    made = dew.pipeline("ner", model=task.bundle, aggregation_strategy="max")
    wanted = theirs(list(TEXTS), aggregation_strategy="max")
    assert_same(list(made((text for text in TEXTS), batch_size=32)), wanted)


def test_refusals_say_what_to_do(pair: Any) -> None:
    task, _ = pair
    with pytest.raises(InputRefused, match="choose one of simple, first, average, max"):
        task("fog", stride=3)
    with pytest.raises(InputRefused, match="below the 64 tokens"):
        task("fog", stride=64, aggregation_strategy="simple")
    with pytest.raises(InputRefused, match="aggregation_strategy is 'mean'"):
        task("fog", aggregation_strategy="mean")
    with pytest.raises(InputRefused, match="a list of words"):
        task("fog", is_split_into_words=True)
    with pytest.raises(InputRefused, match="a text is"):
        task([["fog"]])
