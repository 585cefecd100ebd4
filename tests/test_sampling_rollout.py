"""Rollouts: the sampler's log-probabilities are the training forward's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.errors import InputRefused
from dew.inference.bundle import Bundle
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.sampling.rollout import rollout, sampling_rules
from dew.sampling.text import filtered

MODEL = CausalTransformer(
    vocab_size=37,
    emb_features=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    mlp_features=32,
    max_seq_len=24,
)
PROMPTS = np.random.default_rng(0).integers(0, 37, (3, 5)).astype(np.int32)
MASK = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 1, 1]])
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def variables():
    fresh = MODEL.init(jax.random.key(1), jnp.zeros((1, 1), jnp.int32))
    return jax.tree.map(lambda leaf: 5 * leaf, fresh)


@pytest.mark.parametrize(
    "rules",
    [
        {},
        pytest.param({"temperature": 0.7, "top_k": 9, "top_p": 0.8}, marks=pytest.mark.slow),
        {"temperature": 0.0},
    ],
    ids=["plain", "filtered", "greedy"],
)
def test_each_log_probability_is_the_one_a_whole_forward_gives(variables, rules):
    """Oracle: one call of the model over the finished rows, left padding and ends included."""
    out = rollout(MODEL, variables, PROMPTS, MASK, steps=8, key=KEY, ends=(3,), **rules)
    logits = MODEL.apply(variables, out.tokens[:, :-1], mask=out.mask[:, :-1])[:, 4:]
    named = {"temperature": 1.0, "top_k": None, "top_p": None} | rules
    kept = filtered(logits.reshape(-1, 37), sampling_rules(**named)).reshape(logits.shape)
    scores = jax.nn.log_softmax(kept)
    wanted = jnp.take_along_axis(scores, out.tokens[:, 5:, None], -1)[..., 0]
    real = np.asarray(out.mask[:, 5:])
    np.testing.assert_allclose(out.log_probs, np.where(real, wanted, 0.0), atol=5e-6)
    if rules.get("temperature") == 0:
        np.testing.assert_array_equal(
            np.where(real, out.tokens[:, 5:], 0), np.where(real, jnp.argmax(logits, -1), 0)
        )


def test_a_row_ends_at_its_end_and_is_padded_after_it(variables):
    out = rollout(MODEL, variables, PROMPTS, MASK, steps=12, key=KEY, ends=(3, 10), pad=36)
    np.testing.assert_array_equal(out.tokens[:, :5], PROMPTS)
    np.testing.assert_array_equal(out.mask[:, :5], MASK)
    for row, real in zip(np.asarray(out.tokens[:, 5:]), np.asarray(out.mask[:, 5:]), strict=True):
        ends = np.flatnonzero(np.isin(row, (3, 10)) & (real == 1))
        count = int(real.sum())
        assert real.tolist() == [1] * count + [0] * (12 - count)
        assert ends.tolist() in ([], [count - 1])
        assert (row[count:] == 36).all()
    assert np.asarray(out.mask).sum() < 3 * 12 + MASK.sum(), "no row ended: the case is too weak"


def test_the_same_key_draws_the_same_rows_and_padding_changes_none(variables):
    out = rollout(MODEL, variables, PROMPTS[2:, 3:], None, steps=6, key=KEY)
    again = rollout(MODEL, variables, PROMPTS[2:, 3:], None, steps=6, key=KEY)
    np.testing.assert_array_equal(out.tokens, again.tokens)
    padded = rollout(MODEL, variables, PROMPTS[2:], MASK[2:], steps=6, key=KEY)
    np.testing.assert_array_equal(out.tokens, padded.tokens[:, 3:])
    other = rollout(MODEL, variables, PROMPTS[2:, 3:], None, steps=6, key=jax.random.key(9))
    assert (np.asarray(out.tokens) != np.asarray(other.tokens)).any()


def test_greedy_rows_are_those_of_the_decode_engine(variables):
    """Oracle: `Bundle.generate`, which is held to transformers."""
    wanted = Bundle(MODEL, variables).generate(PROMPTS, MASK, max_new_tokens=8, do_sample=False)
    out = rollout(MODEL, variables, PROMPTS, MASK, steps=8, key=KEY, temperature=0)
    np.testing.assert_array_equal(out.tokens, wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"steps": 0}, "0 new ones"), ({"steps": 20}, "24 in all at most")],
)
def test_what_cannot_be_drawn_is_refused(variables, options, message):
    with pytest.raises(InputRefused, match=message):
        rollout(MODEL, variables, PROMPTS, key=KEY, **options)
    with pytest.raises(InputRefused, match="temperature -1"):
        rollout(MODEL, variables, PROMPTS, key=KEY, steps=1, temperature=-1)
