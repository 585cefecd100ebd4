"""Texts batched by length give what each gives alone; poolings are numpy's."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from text_encoders import FAMILIES

from bridges.loading import read_model
from dew.errors import InputRefused
from dew.inference.bundle import Bundle
from dew.inference.embedding import encoded, sentence_embeddings, text_outputs
from dew.inference.row_outputs import (
    FEW_STEPS,
    Row,
    length_batches,
    padded_batch,
    padded_length,
    row_outputs,
)
from dew.inference.weights_apart import can_be_apart
from dew.nn.backbones.text_encoder import TextEncoder
from dew.nn.heads import HeadSpec, SentencePooling, pooled_states, sentence_embedding

MEAN = SentencePooling(("mean",), normalized=True)
START, END, PAD = 1, 2, 0
TEXTS = ["zz", "abcabc", "q", "middling", "abcdefghijklmnopqrst"]


class Letters:
    """A tokenizer of lower-case letters, with a start and an end token."""

    pad_token_id = PAD
    vocab_size = 32

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = [ord(letter) - ord("a") + 3 for letter in text]
        return [START, *ids, END] if add_special_tokens else ids

    def encode_batch(self, texts: Any, *, add_special_tokens: bool = True) -> list[list[int]]:
        return [self.encode(text, add_special_tokens=add_special_tokens) for text in texts]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    model = TextEncoder(
        vocab_size=32,
        emb_features=16,
        num_layers=2,
        num_heads=2,
        mlp_features=24,
        max_seq_len=24,
        heads=(HeadSpec("token", 3),),
    )
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jax.numpy.asarray(generator.standard_normal(leaf.shape), leaf.dtype),
        model.parameter_shapes(),
    )
    processor: Any = Letters()
    return Bundle(model=model, variables={"params": params}, processor=processor)


def test_lengths_are_padded_by_an_eighth_at_most() -> None:
    for length in range(1, 513):
        padded = padded_length(length)
        assert padded >= length
        assert padded - length < max(8, length / 8)
        assert padded_length(length, limit=512) <= 512
    assert len({padded_length(length) for length in range(1, 513)}) == 32
    assert len({padded_length(length, steps=FEW_STEPS) for length in range(1, 513)}) == 12
    assert padded_length(23, limit=23) == 23


def test_every_row_is_in_one_batch_beside_its_like() -> None:
    lengths = list(np.random.default_rng(0).integers(1, 99, 41))
    batches = length_batches(lengths, 8)
    assert sorted(row for batch in batches for row in batch) == list(range(41))
    assert max(map(len, batches)) == 8
    firsts = [lengths[batch[0]] for batch in batches]
    lasts = [lengths[batch[-1]] for batch in batches]
    assert all(last >= first for last, first in zip(lasts, firsts[1:], strict=False))


def test_rows_are_padded_on_the_right_and_batches_with_their_last_row() -> None:
    found = padded_batch([Row([5, 6]), Row([7])], length=3, count=3, padding=9)
    assert found["input_ids"].tolist() == [[5, 6, 9], [7, 9, 9], [7, 9, 9]]
    assert found["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0], [1, 0, 0]]


@pytest.fixture(scope="module")
def states(bundle: Bundle) -> list[np.ndarray]:
    """The states of `TEXTS`, all run in one batch padded to the longest row there may be."""
    rows = [Letters().encode(text) for text in TEXTS]
    inputs = padded_batch([Row(row) for row in rows], length=24, count=len(rows), padding=PAD)
    del inputs["token_type_ids"]
    found = np.asarray(bundle(**inputs)["last_hidden_state"])
    return [one[: len(row)] for one, row in zip(found, rows, strict=True)]


def test_texts_in_batches_give_what_each_gives_alone(bundle: Bundle, states: Any) -> None:
    found = text_outputs(bundle, TEXTS, batch_size=2)
    for one, wanted in zip(found, states, strict=True):
        assert one["last_hidden_state"].shape == wanted.shape
        np.testing.assert_allclose(one["last_hidden_state"], wanted, atol=1e-5)


def test_vectors_keep_the_order_of_the_texts(bundle: Bundle, states: Any) -> None:
    found = sentence_embeddings(bundle, TEXTS[:3], pooling=MEAN, batch_size=2)
    assert found.shape == (3, 16)
    for vector, known in zip(found, states[:3], strict=True):
        mean = known.mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)
    assert sentence_embeddings(bundle, [], pooling=MEAN).shape == (0, 16)


def test_a_long_text_is_cut_before_its_last_special_token(bundle: Bundle) -> None:
    rows = encoded(bundle, ["abcdef", "ab"], 5)
    assert rows == [[START, 3, 4, 5, END], [START, 3, 4, END]]
    assert [len(row) for row in encoded(bundle, ["x" * 99], None)] == [24]
    with pytest.raises(InputRefused, match="no room"):
        encoded(bundle, ["abc"], 2)


def test_what_cannot_be_embedded_is_refused(bundle: Bundle) -> None:
    with pytest.raises(InputRefused, match="pass pooling="):
        sentence_embeddings(bundle, ["a"])
    with pytest.raises(InputRefused, match="batch_size"):
        text_outputs(bundle, ["a"], batch_size=0)
    wrong: Any = [b"a"]
    with pytest.raises(InputRefused, match="expected a string"):
        text_outputs(bundle, wrong)
    with pytest.raises(InputRefused, match="tokenizer"):
        text_outputs(bundle.replace(processor=None), ["a"])
    with pytest.raises(InputRefused, match="gives no logits"):
        text_outputs(bundle, ["ab"], outputs=("logits",))
    headed = bundle.replace(model=bundle.model.clone(head="token"))
    with pytest.raises(InputRefused, match="head"):
        sentence_embeddings(headed, ["a"], pooling=MEAN)


@pytest.mark.parametrize(
    "family",
    [
        "modernbert biased",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("bert", "mpnet", "deberta-v2")),
    ],
)
def test_layers_apart_give_what_the_scanned_stack_gives(family: str) -> None:
    # MLPs of 2,000 inputs, whose sums are cut on CPU.
    config = {**FAMILIES[family][1], "intermediate_size": 2000, "model_type": family.split()[0]}
    model = read_model(config)
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jax.numpy.asarray(0.3 * generator.standard_normal(leaf.shape), leaf.dtype),
        model.parameter_shapes(),
    )
    bundle = Bundle(model=model, variables={"params": params})
    row = Row([5, 6, 7, 8, 9, 10, 11])
    assert can_be_apart(bundle)
    (found,) = row_outputs(bundle, [row])
    inputs = padded_batch([row], length=8, count=1, padding=PAD)
    del inputs["token_type_ids"]
    wanted = np.asarray(bundle(**inputs)["last_hidden_state"])[0, :7]
    np.testing.assert_allclose(found["last_hidden_state"], wanted, atol=1e-5)


def test_poolings_are_those_of_numpy() -> None:
    states = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    short = states[1, :2]
    for mode, wanted in (("cls", short[0]), ("mean", short.mean(0)), ("max", short.max(0))):
        found = pooled_states(jax.numpy.asarray(states), jax.numpy.asarray(mask), mode)
        np.testing.assert_allclose(found[1], wanted, rtol=1e-6)
    both = SentencePooling(("cls", "mean"), normalized=True)
    vector = np.concatenate([short[0], short.mean(0)])
    found = sentence_embedding(jax.numpy.asarray(states), jax.numpy.asarray(mask), both)
    np.testing.assert_allclose(found[1], vector / np.linalg.norm(vector), rtol=1e-5)
    with pytest.raises(InputRefused, match="pooling"):
        pooled_states(jax.numpy.asarray(states), None, "median")
