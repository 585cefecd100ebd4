"""The logit rules keep what transformers' keep, and draws follow the softmax of what is kept."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.sampling.text import (
    Rules,
    draw,
    filtered,
    forbid,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_repetition,
    scale_temperature,
)

ROWS, VOCABULARY = 6, 97


def spread_logits() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 3, (ROWS, VOCABULARY)).astype(np.float32)


def tied_logits() -> np.ndarray:
    # Halves on purpose: many equal values, on and off every threshold.
    return np.random.default_rng(1).integers(-4, 4, (ROWS, VOCABULARY)).astype(np.float32) / 2


LOGITS = {"spread": spread_logits, "tied": tied_logits}


def theirs(processor, logits: np.ndarray, ids: np.ndarray | None = None) -> np.ndarray:
    import torch

    ids = np.zeros((len(logits), 1), np.int64) if ids is None else ids
    return processor(torch.tensor(ids), torch.tensor(logits)).numpy()


def assert_same_kept(got, expected: np.ndarray, kind: str) -> None:
    """Of equals at top-p's edge torch's unstable sort keeps any: compare values, not ids, there."""
    got = np.asarray(got)
    if kind == "tied":
        got, expected = np.sort(got, axis=-1), np.sort(expected, axis=-1)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
    kept = np.isfinite(expected)
    np.testing.assert_allclose(got[kept], expected[kept], rtol=2e-7)


@pytest.mark.torch
@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("k", [1, 5, 40, VOCABULARY, 1000])
def test_top_k_keeps_what_transformers_keeps(kind, k):
    from transformers import TopKLogitsWarper

    logits = LOGITS[kind]()
    np.testing.assert_array_equal(
        keep_top_k(jnp.asarray(logits), k), theirs(TopKLogitsWarper(k), logits)
    )


@pytest.mark.torch
@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("p", [0.01, 0.3, 0.9, 0.999])
def test_top_p_keeps_what_transformers_keeps(kind, p):
    from transformers import TopPLogitsWarper

    logits = LOGITS[kind]()
    assert_same_kept(keep_top_p(jnp.asarray(logits), p), theirs(TopPLogitsWarper(p), logits), kind)


@pytest.mark.torch
@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("p", [0.0, 0.05, 0.5, 1.0])
def test_min_p_keeps_what_transformers_keeps(kind, p):
    from transformers import MinPLogitsWarper

    logits = LOGITS[kind]()
    expected = theirs(MinPLogitsWarper(p), logits)
    got = np.asarray(keep_min_p(jnp.asarray(logits), p))
    if p == 1.0 and kind == "tied":
        # At p = 1 a tie with the likeliest token turns on the last bit of two softmaxes.
        expected = np.where(logits == logits.max(-1, keepdims=True), logits, -np.inf)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.torch
@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_repetition_penalty_equals_transformers(penalty):
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = spread_logits()
    ids = np.random.default_rng(2).integers(0, VOCABULARY, (ROWS, 12))
    seen = np.zeros(logits.shape, bool)
    np.put_along_axis(seen, ids, True, axis=-1)
    got = penalize_repetition(jnp.asarray(logits), jnp.asarray(seen), penalty)
    np.testing.assert_allclose(
        got, theirs(RepetitionPenaltyLogitsProcessor(penalty), logits, ids), rtol=2e-7
    )


@pytest.mark.torch
@pytest.mark.parametrize("kind", LOGITS)
def test_the_rules_together_keep_what_transformers_keeps(kind):
    # transformers' order: temperature, top-k, top-p, min-p.
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    logits = LOGITS[kind]()
    chain = LogitsProcessorList(
        [
            TemperatureLogitsWarper(0.8),
            TopKLogitsWarper(30),
            TopPLogitsWarper(0.95),
            MinPLogitsWarper(0.02),
        ]
    )
    got = filtered(jnp.asarray(logits), Rules(0.8, 30, 0.95, 0.02))
    assert_same_kept(got, theirs(chain, logits), kind)


def test_top_k_keeps_every_equal_of_the_last():
    logits = jnp.asarray([[3.0, 1.0, 1.0, 1.0, 0.0]])
    kept = np.isfinite(np.asarray(keep_top_k(logits, 2)))
    assert kept.tolist() == [[True, True, True, True, False]]


def test_top_p_removes_the_lower_id_of_equals_and_never_the_last_token():
    # Four equals hold a quarter each: at p = 0.5 exactly the two lowest ids are removed.
    kept = np.isfinite(np.asarray(keep_top_p(jnp.zeros((1, 4)), 0.5)))
    assert kept.tolist() == [[False, False, True, True]]
    one = np.isfinite(np.asarray(keep_top_p(jnp.asarray([[0.0, 9.0, 0.0]]), 1e-6)))
    assert one.tolist() == [[False, True, False]]


def test_forbid_takes_ids_from_the_rows_asked_only():
    logits = forbid(jnp.zeros((2, 4)), jnp.asarray([1, 3]), jnp.asarray([True, False]))
    assert np.isfinite(np.asarray(logits)).tolist() == [[True, False, True, False], [True] * 4]


def test_temperature_divides():
    np.testing.assert_array_equal(scale_temperature(jnp.asarray([[2.0, -4.0]]), 2.0), [[1.0, -2.0]])


@pytest.mark.parametrize(
    "rules",
    [
        Rules(),
        Rules(temperature=0.5),
        Rules(top_k=4),
        Rules(temperature=1.5, top_k=6, top_p=0.9),
        Rules(top_p=0.8, min_p=0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize("tied", [False, True])
def test_draws_follow_the_softmax_of_the_kept_tokens(rules, tied):
    # Closed form: Pearson's chi-square against the exact softmax; the bound is its mean plus
    # five standard deviations, for a fixed seed.
    row = np.asarray(
        [2.0, 1.5, 1.0, 1.0, 1.0, 0.0, -1.0, 0.5] if tied else [2, 1.7, 1, 0.9, 0, -1, 0.4, -2]
    )
    count = 4000
    logits = jnp.broadcast_to(jnp.asarray(row, jnp.float32), (count, len(row)))
    keys = jax.random.split(jax.random.key(3), count)
    drawn = np.asarray(jax.jit(lambda l, k: draw(l, k, rules))(logits, keys))
    shares = np.asarray(jax.nn.softmax(filtered(logits[:1], rules))[0], np.float64)
    seen = np.bincount(drawn, minlength=len(row))
    assert seen[shares == 0].sum() == 0
    kept = shares > 0
    expected = count * shares[kept] / shares[kept].sum()
    freedom = kept.sum() - 1
    chi_square = ((seen[kept] - expected) ** 2 / expected).sum()
    assert chi_square <= freedom + 5 * np.sqrt(2 * freedom) + 1e-9


def test_a_rows_draw_depends_on_its_own_key_and_logits_alone():
    logits = jnp.asarray(spread_logits())
    keys = jax.random.split(jax.random.key(0), ROWS)
    rules = Rules(0.9, 20, 0.9, None)
    drawn = jax.jit(lambda l, k: draw(l, k, rules))
    together = drawn(logits, keys)
    alone = jnp.concatenate([drawn(logits[i : i + 1], keys[i : i + 1]) for i in range(ROWS)])
    np.testing.assert_array_equal(together, alone)
