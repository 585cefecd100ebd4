"""A trained model: every number of SmolLM2-135M is the one that transformers gives.

The right values come from transformers reading the same GGUF file: in float64 for rounding, in
float32 where tokens, bytes or a score are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from parity.check import judge
from parity.running import load_check
from parity.subject import Subject, load_subject

# Ten AdamW steps of torch in float64 take minutes on a busy machine.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.assets,
    pytest.mark.torch,
    pytest.mark.timeout(1500),
]

CHARACTERS = 12_000
"""How much of the held-out play is scored: about 25 windows of 128 tokens."""


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path, plays: Path) -> Iterator[Subject]:
    """SmolLM2, with the held-out play as its text."""
    play = (plays / "held_out" / "macbeth.txt").read_text(encoding="utf-8")
    subject = load_subject(smollm2_gguf, name="smollm2", text=play[:CHARACTERS])
    yield subject
    subject.checkpoint.release()


def test_paris_is_the_capital_of_france(smollm2: Subject) -> None:
    processor = smollm2.bundle.processor
    ids = np.asarray([processor.encode("The capital of France is")])
    logits = np.asarray(smollm2.bundle(input_ids=ids)["logits"])
    assert processor.decode([int(logits[0, -1].argmax())]) == " Paris"


@pytest.mark.parametrize(
    "check",
    [
        "weights",
        "tokenizer",
        "logits",
        "loss and gradient",
        "greedy",
        "perplexity",
        "round trip",
        "update",
    ],
)
def test_it_agrees_with_transformers(smollm2: Subject, check: str) -> None:
    verdict = judge(load_check(check), smollm2, seed=0)
    assert verdict.passed, verdict


def test_uneven_prompts_padded_on_the_left_continue_as_each_alone(smollm2: Subject) -> None:
    processor = smollm2.bundle.processor
    prompts = ["The capital of France is", "Once upon a time", "def fibonacci(n):\n    if n < 2:"]
    rows = [processor.encode(prompt) for prompt in prompts]
    width = max(map(len, rows))
    ids = np.full((len(rows), width), processor.pad_token_id, np.int32)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, width - len(tokens) :] = tokens
        mask[row, width - len(tokens) :] = 1
    together = smollm2.bundle.generate(ids, mask, max_new_tokens=64, do_sample=False)
    for row, tokens in enumerate(rows):
        alone = smollm2.bundle.generate([tokens], max_new_tokens=64, do_sample=False)
        new = np.asarray(alone)[0, len(tokens) :]
        assert np.array_equal(np.asarray(together)[row, width : width + len(new)], new)
