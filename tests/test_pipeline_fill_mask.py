"""fill-mask gives transformers' dicts: tokens, targets, several masks, long texts."""

from __future__ import annotations

from typing import Any

import pytest
from pipeline_texts import Theirs, assert_same, write_encoder

import dew
from dew.errors import InputRefused

PIECES = (
    "When shall [MASK] three meet again",
    "[MASK]",
    "fair [MASK] foul and [MASK] is fair",
    "[MASK] [MASK] [MASK]",
    "\N{GRINNING FACE} in the [MASK]",
    "the\n[MASK]\tking.",
    "d\N{LATIN SMALL LETTER E WITH ACUTE}j\N{LATIN SMALL LETTER A WITH GRAVE} [MASK]",
    "[CLS] the [MASK] [SEP]",
    "hurlyburly[MASK]",
    "a, b. c! [MASK]?",
    "the fog " * 20 + "[MASK]",
    "[MASK]" + " and rain" * 10,
)
BYTES = tuple(text.replace("[MASK]", "<mask>") for text in PIECES)


@pytest.fixture(
    scope="module",
    params=["BertForMaskedLM", pytest.param("RobertaForMaskedLM", marks=pytest.mark.slow)],
)
def pair(request: Any, tmp_path_factory: Any) -> Any:
    """A task, transformers' own, and texts with the model's masks."""
    pytest.importorskip("torch")
    folder = write_encoder(tmp_path_factory.mktemp("masked"), request.param)
    texts = PIECES if request.param.startswith("Bert") else BYTES
    short = [text for text in texts if len(text) < 50 or request.param.startswith("Bert")]
    return dew.pipeline(folder), Theirs("fill-mask", folder), short


def test_masks_get_transformers_tokens(pair: Any) -> None:
    task, theirs, texts = pair
    assert_same(task(texts), theirs(texts))
    assert_same(task(texts[:1]), theirs(texts[:1]))


def test_options_are_those_of_transformers(pair: Any) -> None:
    task, theirs, texts = pair
    assert_same(task(texts[0], top_k=2), theirs(texts[0], top_k=2))
    assert_same(task(texts[2], targets="i"), theirs(texts[2], targets="i"))
    for target in (["fog", "zingy"], "x\N{GRINNING FACE}y"):
        wanted = theirs(texts[0], targets=target)
        with pytest.warns(UserWarning, match="is no token"):
            assert_same(task(texts[0], targets=target), wanted)
    long = texts[0] + " and rain" * 200
    cut = {"tokenizer_kwargs": {"truncation": True}}
    assert_same(task(long, **cut), theirs(long, **cut))


@pytest.mark.slow
def test_a_traced_model_gives_the_same(tmp_path: Any) -> None:
    folder = write_encoder(tmp_path, "AlbertForMaskedLM")
    with pytest.warns(UserWarning, match="traced"):
        task = dew.pipeline(folder)
    texts = [PIECES[0], PIECES[2]]
    assert_same(task(texts), Theirs("fill-mask", folder)(texts))


def test_refusals_say_what_to_do(pair: Any) -> None:
    task, _, texts = pair
    with pytest.raises(InputRefused, match="has no mask; write "):
        task("no mask here")
    with pytest.raises(InputRefused, match=r"the model has 64 positions.*tokenizer_kwargs"):
        task(texts[0] + " and rain" * 200)
    with pytest.raises(InputRefused, match="top_k is 0"):
        task(texts[0], top_k=0)
    with pytest.raises(InputRefused, match="tokenizer_kwargs"):
        task(texts[0], tokenizer_kwargs={"speed": 3})
    with pytest.raises(InputRefused, match="a text is 3"):
        task([3])
