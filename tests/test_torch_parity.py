"""Parity's checks on traced models, against torch and transformers; and the tasks they are fit for.

Each model is tiny and random, its weights far enough from their first values that nothing is zero.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TINY_VOCABULARY, write_tokenizer

import bridges
import dew
from dew.errors import InputRefused
from parity.check import judge
from parity.running import CHECKS, FULL, certify, load_check
from parity.subject import load_subject

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*no native family")]

CONFIGS: dict[str, dict[str, Any]] = {
    "GPTNeoForCausalLM": {
        "vocab_size": 97,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "max_position_embeddings": 32,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 5,
    },
    "ErnieForMaskedLM": {
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 32,
    },
    "BloomForCausalLM": {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "MT5ForConditionalGeneration": {
        "vocab_size": 97,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    "ErnieModel": {
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 32,
    },
}
GRADIENT = "loss and gradient"
LOOKING = ("weights", "logits", GRADIENT, "round trip")


def written(architecture, folder, **changes):
    """Write a random model as transformers does; changes are fields of its config."""
    import transformers

    kind = getattr(transformers, architecture)
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    module = kind(kind.config_class(**CONFIGS[architecture] | changes, **ids)).eval()
    generator = np.random.default_rng(len(architecture))
    with torch.no_grad():
        for name, tensor in sorted(module.named_parameters()):
            noise = torch.tensor(generator.standard_normal(tuple(tensor.shape)).astype(np.float32))
            scale = name.endswith("weight") and tensor.ndim == 1
            tensor.copy_(0.2 * noise + scale)
    module.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    """Subjects by architecture, loaded when first asked for."""
    patch = pytest.MonkeyPatch()
    patch.setenv("DEW_CACHE", str(tmp_path_factory.mktemp("cache")))
    made = {}

    def subject(architecture):
        if architecture not in made:
            folder = tmp_path_factory.mktemp(architecture)
            made[architecture] = load_subject(written(architecture, folder), name=architecture)
        return made[architecture]

    yield subject
    patch.undo()


@pytest.mark.parametrize(
    "check",
    [*LOOKING, *(pytest.param(name, marks=pytest.mark.slow) for name in ("update", "perplexity"))],
)
def test_a_traced_causal_model_passes(subjects, check):
    verdict = judge(load_check(check), subjects("GPTNeoForCausalLM"), seed=0)
    assert verdict.passed, verdict


@pytest.mark.parametrize(
    "check",
    [name if name != GRADIENT else pytest.param(name, marks=pytest.mark.slow) for name in LOOKING],
)
def test_a_traced_encoder_passes(subjects, check):
    verdict = judge(load_check(check), subjects("ErnieForMaskedLM"), seed=0)
    assert verdict.passed, verdict


@pytest.mark.slow
@pytest.mark.parametrize("check", [*LOOKING, "update"])
@pytest.mark.parametrize(
    "architecture", ["BloomForCausalLM", "MT5ForConditionalGeneration", "ErnieModel"]
)
def test_other_traced_models_pass(subjects, architecture, check):
    verdict = judge(load_check(check), subjects(architecture), seed=0)
    assert verdict.passed, verdict


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["GPTNeoForCausalLM", "MT5ForConditionalGeneration"])
def test_greedy_tokens_of_traced_models_are_transformers(subjects, architecture):
    verdict = judge(load_check("greedy"), subjects(architecture), seed=0)
    assert verdict.passed, verdict


@pytest.mark.slow
def test_a_traced_models_pipeline_writes_what_transformers_does(subjects, tmp_path):
    import transformers

    folder = written("GPTNeoForCausalLM", tmp_path, vocab_size=TINY_VOCABULARY)
    write_tokenizer(folder)
    theirs = transformers.pipeline("text-generation", model=str(folder), device="cpu")
    ours = dew.pipeline(str(folder))
    for prompts in ("When shall we", ["When shall we", "So foul and fair a day"]):
        options = {"do_sample": False, "max_new_tokens": 8}
        assert ours(prompts, **options) == theirs(prompts, **options)


@pytest.mark.slow
def test_a_changed_weight_fails_every_check_that_sees_it(subjects):
    subject = subjects("GPTNeoForCausalLM")
    name = "transformer.h.1.mlp.c_fc.weight"
    params = dict(subject.bundle.variables["params"])
    params[name] = params[name].at[0, 0].add(1e-3)
    bundle = subject.bundle.replace(variables={**subject.bundle.variables, "params": params})
    broken = dataclasses.replace(subject, bundle=bundle)
    for check in LOOKING:
        verdict = judge(load_check(check), broken, seed=0)
        assert not verdict.passed, check


def test_checks_that_do_not_fit_are_left_out_with_their_reason(subjects):
    subject = subjects("ErnieForMaskedLM")
    assert subject.why_not("tokenizer") == "the checkpoint has no tokenizer"
    assert subject.why_not("greedy") == "ernie has no generate in transformers either"
    assert subject.why_not("perplexity") == "ernie is no causal language model"
    assert [name for name in CHECKS if not subject.why_not(name)] == [
        "weights",
        "logits",
        "hidden states",
        "padding",
        GRADIENT,
        "update",
        "loss curve",
        "export",
        "round trip",
    ]


@pytest.mark.slow
def test_certify_writes_verdicts_and_what_was_left_out(subjects):
    subject = subjects("ErnieForMaskedLM")
    verdicts = certify(subject.source)
    assert all(verdict.passed for verdict in verdicts)
    report = json.loads((subject.source / "parity.json").read_text())
    assert report["passed"]
    assert {check["name"] for check in report["skipped"]} == {
        *("tokenizer", "processor", "greedy", "beams", "sampled", "perplexity")
    }
    asked = set(CHECKS) - FULL - {check["name"] for check in report["skipped"]}
    assert {found["name"] for found in report["verdicts"]} == asked


def test_a_task_that_a_traced_model_does_not_do_is_refused(subjects):
    bundle = subjects("ErnieForMaskedLM").bundle
    wanted = r"'ErnieForMaskedLM' \(ernie\) does not do text-generation; it is fit for fill-mask"
    with pytest.raises(InputRefused, match=wanted):
        dew.pipeline("text-generation", model=bundle)
    for source in (bundle, str(subjects("ErnieForMaskedLM").source)):
        # Its own task is read from its architecture.
        with pytest.raises(InputRefused, match="fill-mask needs a tokenizer"):
            dew.pipeline(source)
    assert subjects("GPTNeoForCausalLM").bundle.tasks == ("text-generation",)
    assert bridges.load(str(subjects("ErnieForMaskedLM").source)).tasks == ()
