"""Beam search against transformers' `generate`, id for id."""

from __future__ import annotations

import numpy as np
import pytest

import bridges
from dew.errors import InputRefused
from parity import tiny

pytestmark = pytest.mark.torch
SLOW = pytest.mark.slow

PROMPTS = np.random.default_rng(1).integers(3, 211, (3, 7))
MASK = np.ones_like(PROMPTS)
MASK[1, :3] = 0
MASK[2, :5] = 0
# Ends that are common, so that texts end early and at different lengths.
ENDS = list(range(3, 12))


@pytest.fixture(scope="module", params=["llama tied", pytest.param("gpt2", marks=SLOW)])
def pair(request, tmp_path_factory):
    """A tiny random checkpoint, as dew and as transformers read it."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    folder = tiny.write(request.param, tmp_path_factory.mktemp("beams"), seed=0)
    return bridges.load(folder), AutoModelForCausalLM.from_pretrained(folder).eval()


def theirs(model, **options) -> np.ndarray:
    """Return the ids that transformers generates."""
    import torch

    inputs = {"input_ids": torch.tensor(PROMPTS), "attention_mask": torch.tensor(MASK)}
    with torch.no_grad():
        return model.generate(**inputs, do_sample=False, **options).numpy()


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},
        {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 2.0},
        {"num_beams": 2, "early_stopping": True, "length_penalty": 0.5},
        {"num_beams": 3, "early_stopping": "never", "length_penalty": -1.0},
        {"num_beams": 3, "repetition_penalty": 1.5, "min_new_tokens": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(ENDS, id="common"),
        pytest.param([5], id="one", marks=SLOW),
        pytest.param(None, id="none", marks=SLOW),
    ],
)
def test_the_texts_are_transformers(pair, options, ends):
    ours, model = pair
    if ends is None and "min_new_tokens" in options:
        options = {"num_beams": 3, "repetition_penalty": 1.5}
    shared = {"max_new_tokens": 12, "eos_token_id": ends, "pad_token_id": 2, **options}
    wanted = theirs(model, **shared)
    found = ours.generate(PROMPTS, MASK, do_sample=False, **shared)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_sample": True}, "do_sample is True: not computed with num_beams 2"),
        ({"num_return_sequences": 3}, "num_return_sequences is 3, above num_beams 2"),
        ({"early_stopping": "soon"}, "early_stopping is 'soon'"),
        ({"num_beams": 0}, "num_beams is 0"),
    ],
)
def test_what_does_not_go_together_is_refused(pair, options, message):
    with pytest.raises(InputRefused, match=message):
        pair[0].generate(PROMPTS, max_new_tokens=2, **{"num_beams": 2, **options})
