"""The contract: every family, and twenty traced types, against transformers.

What is loaded, computed, trained, written and exported is held to transformers' own, in float64
where a number is judged (`parity.checks`). The tiny models of `parity.tiny` differ from their
configs' defaults where a port would show it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiny_subjects import TinySubjects

from bridges.family import FAMILIES
from parity import tiny
from parity.check import judge
from parity.checks.transformers_4 import ReadByFour
from parity.four import TransformersFour, install
from parity.running import CHECKS, FULL, load_check
from parity.subject import Subject

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*no native family")]

# Llama's and GPT-2's variants are in test_parity_checks.
NAMES = tuple(name for name in tiny.MODELS if not name.startswith(("llama", "gpt2")))
# What the others compute is computed by one of these too; text encoders and encoder-decoders have
# fast tests of their own.
FAST = {
    *("gpt_neox", "opt post-norm", "mixtral", "qwen2 windowed", "qwen3", "gemma2", "gemma3_text"),
    *("phi3 partial longrope", "olmo2", "smollm3", "granite"),
    *("vit labels", "clip", "resnet labels", "swin", "segformer places"),
    "regnet",
}
EACH = [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
LOOKING = ("weights", "logits")


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    """Tiny random checkpoints, written by transformers when they are first wanted."""
    pytest.importorskip("torch")
    return TinySubjects(tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersFour]:
    """The second environment: transformers 4 beside the same torch, in a process of its own."""
    with TransformersFour(install(tmp_path_factory.mktemp("four"))) as running:
        yield running


def test_every_family_has_a_tiny_model_and_twenty_types_go_by_tracing():
    kinds = {config["model_type"] for config in tiny.NATIVE.values()}
    assert set(FAMILIES) <= kinds
    traced = {config["model_type"] for config in tiny.traced.MODELS.values()}
    assert len(traced) >= 20
    assert not traced & set(FAMILIES)


@pytest.mark.parametrize("name", EACH)
def test_a_model_holds_and_computes_what_transformers_does(subjects, name):
    for check in LOOKING:
        verdict = judge(load_check(check), subjects[name], seed=0)
        assert verdict.passed, verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "check", [name for name in CHECKS if name not in (*LOOKING, "tokenizer", *FULL)]
)
def test_a_model_trains_writes_and_goes_back(subjects, name, check):
    if subjects[name].why_not(check):
        assert check in ("padding", "greedy", "beams", "sampled", "perplexity", "processor")
        return
    verdict = judge(load_check(check), subjects[name], seed=0)
    assert verdict.passed, verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny.MODELS)
def test_transformers_4_reads_every_export(subjects, four, name):
    verdict = judge(ReadByFour(four), subjects[name], seed=0)
    assert verdict.passed, verdict
