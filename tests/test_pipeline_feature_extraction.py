"""feature-extraction gives transformers' nested lists; sentences compare as numpy says."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from pipeline_texts import LONG, TEXTS, TOLERANCE, Theirs, assert_same, write_encoder

import bridges
import dew
from bridges.files.writer import write_file
from bridges.sentence_pooling import pooling_files
from dew.errors import InputRefused
from dew.nn.heads import SentencePooling

POOLING = SentencePooling(("mean",), normalized=True, max_tokens=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Any:
    """A random BERT without a head, with the files of sentence-transformers."""
    pytest.importorskip("torch")
    folder = write_encoder(tmp_path_factory.mktemp("bert"), "BertModel")
    for name, data in pooling_files(POOLING, 32).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        write_file(path, data)
    return folder


@pytest.fixture(scope="module")
def theirs(folder: Any) -> Any:
    return Theirs("feature-extraction", folder)


@pytest.fixture(scope="module")
def task(folder: Any) -> Any:
    return dew.pipeline("feature-extraction", model=folder)


def test_texts_of_all_kinds_get_transformers_states(task: Any, theirs: Any) -> None:
    wanted = theirs(list(TEXTS))
    for found, states in zip(task(list(TEXTS)), wanted, strict=True):
        assert isinstance(found, list)
        np.testing.assert_allclose(np.array(found), np.array(states), atol=TOLERANCE)
    assert_same(task(TEXTS[1]), wanted[1])
    assert isinstance(task(TEXTS[1])[0][0][0], float)


def test_options_are_those_of_transformers(task: Any, theirs: Any) -> None:
    found = task(TEXTS[1], return_tensors=True)
    np.testing.assert_allclose(found, theirs(TEXTS[1], return_tensors=True), atol=TOLERANCE)
    for options in (
        {"truncation": True},
        {"tokenize_kwargs": {"truncation": True, "max_length": 60}},
    ):
        cut = np.array(task(LONG, **options))
        np.testing.assert_allclose(cut, np.array(theirs(LONG, **options)), atol=TOLERANCE)


@pytest.mark.slow
def test_a_head_is_left_out_as_transformers_leaves_it_out(tmp_path: Any) -> None:
    folder = write_encoder(tmp_path, "RobertaForMaskedLM")
    wanted = Theirs("feature-extraction", folder)("fog in the air")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the loader names the head and the pooler
        task = dew.pipeline("feature-extraction", model=folder)
    assert_same(task("fog in the air"), wanted)


def test_refusals_and_typed_results(task: Any) -> None:
    with pytest.raises(InputRefused, match=r"the model has 64 positions.*truncation=True"):
        task(LONG)
    with pytest.raises(InputRefused, match="given twice"):
        task("fog", truncation=True, tokenize_kwargs={"truncation": False})
    with pytest.raises(InputRefused, match="a text is 3"):
        task([3])
    found = task.typed(["fog", "the king is in the fog"])
    states = np.array(task("fog"))[0]
    np.testing.assert_allclose(found.features[0], states.mean(0), atol=TOLERANCE)
    assert found.labels.tolist() == [-1, -1]


def test_a_sentence_encoder_compares_sentences(folder: Any, task: Any) -> None:
    made = dew.pipeline(folder)
    assert made.name == "sentence-similarity"
    texts = [text for text in TEXTS if text]
    # Each text alone by the library's own model, cut to 32 tokens, meant and divided by its length.
    vectors = []
    for states in task(texts, truncation=True, max_length=32):
        mean = np.array(states)[0].mean(0)
        vectors.append(mean / np.linalg.norm(mean))
    wanted = (np.array(vectors[1:]) @ vectors[0]).tolist()
    assert_same(made({"source_sentence": texts[0], "sentences": texts[1:]}), wanted)
    assert_same(made(texts[0], texts[1:]), wanted)
    both = [{"source_sentence": texts[0], "sentences": texts[1:]}] * 2
    assert_same(made(both), [wanted, wanted])
    found = made.representations(texts)
    np.testing.assert_allclose(found.features, np.array(vectors), atol=TOLERANCE)
    with pytest.raises(InputRefused, match="source_sentence"):
        made("fog")
    plain = bridges.load(folder)
    plain = plain.replace(model=plain.model.clone(sentence=None))
    unsaid = dew.pipeline("sentence-similarity", model=plain)
    with pytest.raises(InputRefused, match="pass pooling="):
        unsaid("fog", ["rain"])
    assert_same(unsaid("fog", ["rain"], pooling=POOLING), made("fog", ["rain"]))
