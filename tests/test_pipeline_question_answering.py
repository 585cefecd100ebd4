"""question-answering gives the dicts of transformers 4, the last that had the task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pipeline_texts import assert_same
from question_answers import (
    CASES,
    CLASSES,
    CONTEXT,
    LONG_CONTEXT,
    STORED,
    answers_of_four,
    write_answerer,
)

import dew
from bridges.assets import cache_directory
from dew.errors import InputRefused


@pytest.fixture(scope="module")
def folders(tmp_path_factory: Any) -> dict[str, Path]:
    """Random models of word pieces and of bytes."""
    pytest.importorskip("torch")
    root = tmp_path_factory.mktemp("answerers")
    return {name: write_answerer(root / name, name) for name in CLASSES}


@pytest.mark.parametrize("name", [CLASSES[0], pytest.param(CLASSES[1], marks=pytest.mark.slow)])
def test_answers_are_those_of_transformers_4(folders: Any, name: str) -> None:
    # The stored answers are those of transformers 4.57.6; see `answers_of_four`.
    wanted = json.loads(STORED.read_text())[name]
    task = dew.pipeline(folders[name])
    for (asked, options), answers in zip(CASES, wanted, strict=True):
        assert_same(task(asked, **options), answers, f"{asked} {options}")


@pytest.mark.slow
def test_transformers_4_still_answers_so(folders: Any) -> None:
    from parity.four import install

    packages = install(cache_directory() / "transformers-4")
    stored = json.loads(STORED.read_text())
    for name, folder in folders.items():
        assert_same(answers_of_four(packages, folder), stored[name], name)


def test_every_way_to_ask_gives_the_same(folders: Any) -> None:
    task = dew.pipeline("question-answering", model=folders[CLASSES[0]])
    dicts = [{"question": "who?", "context": CONTEXT}, {"question": "what?", "context": "rain"}]
    wanted = [task(**asked) for asked in dicts]
    together = {"question": ["who?", "what?"], "context": [CONTEXT, "rain"]}
    assert_same(task(**together), wanted)
    assert_same(task(dicts), wanted)
    assert_same(task(dicts, batch_size=1), wanted)
    assert_same(task(*dicts), wanted)
    assert_same(task(data=dicts), wanted)
    assert_same(list(task(asked for asked in dicts)), wanted)
    assert_same(task(dicts[:1]), wanted[0])
    assert_same(task("who?", CONTEXT), wanted[0])


def test_refusals_say_what_to_do(folders: Any) -> None:
    task = dew.pipeline("question-answering", model=folders[CLASSES[0]])
    with pytest.raises(InputRefused, match="pass question= and context="):
        task(question="who?")
    with pytest.raises(InputRefused, match="a context is empty"):
        task(question="who?", context="")
    with pytest.raises(InputRefused, match="2 questions with 1 contexts"):
        task(question=["who?", "what?"], context=["rain"])
    with pytest.raises(InputRefused, match="3 was given; expected texts"):
        task(question="who?", context=3)
    with pytest.raises(InputRefused, match="a text is 3"):
        task([{"question": "who?", "context": 3}])
    with pytest.raises(InputRefused, match="doc_stride is 99"):
        task(question="who?", context=CONTEXT, doc_stride=99)
    with pytest.raises(InputRefused, match=r"leaves no room for its context within 64 tokens"):
        task(question="who is " * 70, context=CONTEXT)
    with pytest.raises(InputRefused, match=r"the model has 64 positions; .*max_seq_len"):
        task(question="who?", context=LONG_CONTEXT, max_seq_len=200)
    with pytest.raises(InputRefused, match="top_k is 0"):
        task(question="who?", context=CONTEXT, top_k=0)
