"""Generation's rules give transformers' tokens; the right values are its own, run in the test."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import hf_llama

from dew.errors import InputRefused, UnknownName
from dew.sampling import penalties, text

pytestmark = pytest.mark.torch

PROMPTS = np.asarray([[5, 6, 7, 5, 6, 7, 5], [0, 0, 0, 11, 12, 11, 13]])
MASK = (PROMPTS != 0).astype(np.int64)
COUNT = 24
ROWS, VOCABULARY = 5, 97

RULES = {
    "no repeats": {"no_repeat_ngram_size": 2},
    "no id twice": {"no_repeat_ngram_size": 1},
    "no run of the prompt's": {"encoder_no_repeat_ngram_size": 1},
    "the prompt's own": {"encoder_repetition_penalty": 3.0},
    "biases": {"sequence_bias": [[[9], 4.0], [[9, 31], 20.0], [[5, 8, 3], 7.5], [[40], -9.0]]},
    "decay": {"exponential_decay_length_penalty": (4, 1.4), "eos_token_id": [20, 33]},
    "lengths": {"min_length": 16, "eos_token_id": list(range(40, 90))},
    "last": {"forced_eos_token_id": 17, "eos_token_id": 17},
    "suppressed": {"suppress_tokens": list(range(30, 60)), "begin_suppress_tokens": [7, 61]},
    "finite": {"remove_invalid_values": True, "renormalize_logits": True},
    "guided": {"guidance_scale": 1.8, "use_cache": False},
    "together": {
        "no_repeat_ngram_size": 3,
        "repetition_penalty": 1.3,
        "bad_words_ids": [[20, 21], [7]],
        "exponential_decay_length_penalty": (8, 1.2),
        "eos_token_id": [20, 33],
    },
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A tiny random transformers model and the bundle loaded from its own folder."""
    import torch

    import bridges

    torch.manual_seed(0)
    theirs = hf_llama(initializer_range=0.3).eval()
    folder = tmp_path_factory.mktemp("model")
    theirs.save_pretrained(folder)
    return theirs, bridges.load(folder)


def reference(theirs, ids, mask, **options) -> np.ndarray:
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = theirs.generate(torch.tensor(ids), attention_mask=torch.tensor(mask), **options)
    return made.numpy()


@pytest.mark.parametrize("name", RULES)
def test_greedy_tokens_under_a_rule_equal_transformers(pair, name):
    theirs, bundle = pair
    options = {"max_new_tokens": COUNT, "do_sample": False, "pad_token_id": 2, **RULES[name]}
    prompts, mask = PROMPTS, MASK
    if "prompt's" in name:
        # transformers takes padding for a part of the prompt where a rule is about that.
        prompts = np.arange(3, 40)[None]
        mask = np.ones_like(prompts)
    got = bundle.generate(prompts, mask, **options)
    np.testing.assert_array_equal(got, reference(theirs, prompts, mask, **options))
    if name != "finite":
        options = {"max_new_tokens": COUNT, "do_sample": False, "pad_token_id": 2}
        free = bundle.generate(prompts, mask, **options)
        assert got.shape != free.shape or (got != free).any(), "the rule changed nothing"


@pytest.mark.parametrize("name", ["no repeats", "biases", "together"])
def test_beams_under_a_rule_equal_transformers(pair, name):
    theirs, bundle = pair
    options = {"max_new_tokens": 8, "num_beams": 3, "pad_token_id": 2, **RULES[name]}
    got = bundle.generate(PROMPTS, MASK, **options)
    expected = reference(theirs, PROMPTS, MASK, do_sample=False, **options)
    np.testing.assert_array_equal(got, expected)


def test_a_forced_first_id_follows_a_prompt_of_one(pair):
    theirs, bundle = pair
    options = {"max_new_tokens": 6, "forced_bos_token_id": 44, "pad_token_id": 2}
    ids, mask = np.asarray([[5], [9]]), np.ones((2, 1), np.int64)
    got = bundle.generate(ids, mask, **options)
    np.testing.assert_array_equal(got, reference(theirs, ids, mask, do_sample=False, **options))
    assert (got[:, 1] == 44).all()


def test_negative_prompts_of_their_own_length_equal_transformers(pair):
    # transformers takes a batch of negative prompts without padding of its own.
    import torch

    theirs, bundle = pair
    negative = np.asarray([[3, 4], [8, 9]])
    options = {"max_new_tokens": 12, "guidance_scale": 2.5, "pad_token_id": 2}
    got = bundle.generate(PROMPTS, MASK, negative_prompt_ids=negative, **options)
    expected = reference(
        theirs,
        PROMPTS,
        MASK,
        do_sample=False,
        use_cache=False,
        negative_prompt_ids=torch.tensor(negative),
        **options,
    )
    np.testing.assert_array_equal(got, expected)


def test_ids_that_a_function_allows_equal_transformers(pair):
    theirs, bundle = pair

    def even_then_odd(index, ids):
        return [i for i in range(96) if i % 2 == (index + len(ids)) % 2]

    options = {"max_new_tokens": 10, "prefix_allowed_tokens_fn": even_then_odd, "pad_token_id": 2}
    prompts, mask = PROMPTS[:, 3:], MASK[:, 3:]
    got = bundle.generate(prompts, mask, **options)
    expected = reference(theirs, prompts, mask, do_sample=False, **options)
    np.testing.assert_array_equal(got, expected)


def spread() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 3, (ROWS, VOCABULARY)).astype(np.float32)


def peaked() -> np.ndarray:
    logits = spread()
    logits[:, 7] += 12
    logits[1, 20:60] = -np.inf
    return logits


def warpers() -> dict:
    from transformers.generation import logits_process as theirs

    return {
        "top_h": (theirs.TopHLogitsWarper(0.4), lambda x: text.keep_top_h(x, 0.4)),
        "typical": (theirs.TypicalLogitsWarper(0.6), lambda x: text.keep_typical(x, 0.6)),
        "epsilon": (theirs.EpsilonLogitsWarper(0.02), lambda x: text.keep_likely(x, 0.02)),
        "eta": (theirs.EtaLogitsWarper(0.03), lambda x: text.keep_eta(x, 0.03)),
    }


@pytest.mark.parametrize("logits", [spread(), peaked()], ids=["spread", "peaked"])
@pytest.mark.parametrize("name", ["top_h", "typical", "epsilon", "eta"])
def test_a_sampling_rule_keeps_what_transformers_keeps(name, logits):
    import torch

    theirs, ours = warpers()[name]
    ids: Any = torch.zeros((ROWS, 1), dtype=torch.long)
    expected = theirs(ids, torch.tensor(logits)).numpy()
    got = np.asarray(ours(jnp.asarray(logits)))
    np.testing.assert_array_equal(got, expected)
    assert np.isinf(expected).sum() > np.isinf(logits).sum()


def test_rules_that_read_whole_rows_bear_on_draws(pair):
    # Closed form: a bound that no id but one passes leaves the likeliest alone.
    _, bundle = pair
    greedy = bundle.generate(PROMPTS, MASK, max_new_tokens=8)
    for name, value in (("epsilon_cutoff", 0.999), ("top_h", 1e-6)):
        options = {"max_new_tokens": 8, "do_sample": True, name: value}
        np.testing.assert_array_equal(bundle.generate(PROMPTS, MASK, **options), greedy)


def test_invalid_values_become_numbers_as_in_transformers():
    import torch
    from transformers.generation.logits_process import InfNanRemoveLogitsProcessor

    logits = np.asarray([[np.nan, np.inf, -np.inf, 1.5]], np.float32)
    ids: Any = torch.zeros((1, 1))
    scores: Any = torch.tensor(logits)
    expected = InfNanRemoveLogitsProcessor()(ids, scores).numpy()
    np.testing.assert_array_equal(penalties.finite(jnp.asarray(logits)), expected)


def test_what_is_not_computed_is_refused_by_name(pair):
    _, bundle = pair
    for name, value in (
        ("watermarking_config", {"bias": 2.0}),
        ("num_beam_groups", 2),
        ("penalty_alpha", 0.6),
        ("force_words_ids", [[3]]),
        ("dola_layers", "high"),
        ("logits_processor", [print]),
    ):
        with pytest.raises(InputRefused, match=f"{name} is .*not computed here"):
            bundle.generate(PROMPTS, MASK, **{name: value})
    with pytest.raises(UnknownName, match="no_repeat_ngram_size"):
        bundle.generate(PROMPTS, MASK, no_repeat_ngrm_size=2)
    for name, value in (
        ("typical_p", 0.0),
        ("no_repeat_ngram_size", -1),
        ("bad_words_ids", [[]]),
        ("sequence_bias", {(3,): "much"}),
        ("exponential_decay_length_penalty", (1.5, 2)),
        ("max_time", 0),
    ):
        with pytest.raises(InputRefused, match=f"{name} is .*expected"):
            bundle.generate(PROMPTS, MASK, **{name: value})
    with pytest.raises(InputRefused, match="sequence_bias is 96, outside the vocabulary"):
        bundle.generate(PROMPTS, MASK, sequence_bias={(96,): 1.0})
    with pytest.raises(InputRefused, match=r"guidance_scale is 2\.0: not computed with num_beams"):
        bundle.generate(PROMPTS, MASK, guidance_scale=2.0, num_beams=2)


def test_time_ends_a_text_early(pair):
    _, bundle = pair
    made = bundle.generate(PROMPTS, MASK, max_new_tokens=40, max_time=1e-6)
    whole = bundle.generate(PROMPTS, MASK, max_new_tokens=40)
    assert made.shape[1] < whole.shape[1]
    np.testing.assert_array_equal(made, whole[:, : made.shape[1]])
