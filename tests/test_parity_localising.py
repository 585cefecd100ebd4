"""Which module is which, where two sides part first, and what is said of the cause."""

from __future__ import annotations

import numpy as np
import pytest
from mutations import field, within
from tiny_subjects import TinySubjects

from parity import inputs as model_inputs
from parity.causes import ATTENTION, EMBEDDING, INNER, MAP, NORM, SUM, difference, role_of
from parity.check import judge
from parity.localising import first_parting, localised
from parity.places import Site, layer_sites
from parity.running import load_check
from parity.steps import steps_inside

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> TinySubjects:
    """Tiny random checkpoints, written by transformers when they are first wanted."""
    return TinySubjects(tmp_path_factory.mktemp("tiny"))


# transformers' modules are the reference: each is compared with dew's of the same weights.


@pytest.mark.parametrize(
    ("name", "module", "ours"),
    [
        ("gpt2", "transformer.h.1.attn.c_attn", "layers/attention/value of layer 1"),
        pytest.param("t5", "decoder.block.0", "decoder_blocks of layer 0", marks=pytest.mark.slow),
        pytest.param(
            "vit labels", "vit.layers.1.attention", "layers/attention", marks=pytest.mark.slow
        ),
        pytest.param("resnet labels", "classifier.1", "top", marks=pytest.mark.slow),
    ],
)
def test_modules_of_the_same_weights_agree_inside_a_right_port(
    subjects: TinySubjects, name: str, module: str, ours: str
) -> None:
    subject = subjects[name]
    steps = steps_inside(subject, model_inputs.batch(subject, 12, 0))
    assert first_parting(steps) is None
    shown = {step.site.theirs: step.site.shown for step in steps}
    assert ours in shown[module]
    layers = layer_sites([step.site for step in steps])
    assert len(set(layers)) >= 2


@pytest.mark.slow
def test_a_traced_model_is_compared_module_by_module(subjects: TinySubjects) -> None:
    subject = subjects["bloom"]
    verdict = judge(load_check("hidden states"), subject, seed=0)
    assert verdict.passed, verdict
    assert verdict.figures["layers"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "place", "cause"),
    [
        ("gemma2", field("score_cap", None), "model.layers.0.self_attn.o_proj", "cap"),
        ("granite", field("embed_scale", 1.0), "the embedding", "embedding's scale"),
        ("mixtral", lambda s: within("experts", chosen=1)(s), "model.layers.0", "experts"),
        ("t5", field("logit_scale", 1.0), "the head", "scale of the logits"),
    ],
)
def test_a_wrong_constant_is_placed_and_proven(
    subjects: TinySubjects, name: str, change, place: str, cause: str
) -> None:
    check = load_check("logits")
    with change(subjects[name]) as wrong:
        verdict = judge(check, wrong, seed=0)
        assert not verdict.passed
        said = localised(verdict, check, wrong, seed=0, judge=judge)
    assert place in said.place, said
    assert said.causes[0].startswith("proven: "), said.causes
    assert cause in said.causes[0]


def test_a_passed_verdict_comes_back_as_it_is(subjects: TinySubjects) -> None:
    check = load_check("weights")
    verdict = judge(check, subjects["gpt2"], seed=0)
    assert localised(verdict, check, subjects["gpt2"], seed=0, judge=judge) is verdict


@pytest.mark.parametrize(
    ("theirs", "ours", "side", "first", "role"),
    [
        ("model.layers.0.self_attn.q_proj", "layers/attention/query", "output", False, MAP),
        ("model.layers.0.input_layernorm", "layers/attention_norm", "output", False, NORM),
        ("transformer.h.0.attn.c_proj", "layers/attention/out", "input", False, ATTENTION),
        ("model.layers.0", "layers", "input", True, EMBEDDING),
        ("model.layers.1", "layers", "input", False, SUM),
        ("model.layers.1", "layers", "output", False, INNER),
    ],
)
def test_the_role_of_a_place(theirs: str, ours: str, side: str, first: bool, role: str) -> None:
    assert role_of(Site(theirs, (ours,), 0), side, first=first) == role


# Closed form: each change has one name.
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.T, "transposed"),
        (lambda w: 0 * w, "dropped"),
        (lambda w: 2 * w, "scaled by 2"),
        (lambda w: w + 1, "1 too large"),
        (lambda w: w - 1, "1 too small"),
        (lambda w: -w, "of the other sign"),
        (lambda w: w[:, ::-1], "flipped"),
        (lambda w: w[[1, 0, 3, 2]], "rows in another order"),
        (lambda w: w.astype(np.float16).astype(np.float32), "rounded to float16"),
        (lambda w: w + np.eye(4, dtype=np.float32), "another tensor"),
        (lambda w: w[:2], "of shape (2, 4)"),
    ],
)
def test_what_was_done_to_a_tensor_is_said(change, words: str) -> None:
    theirs = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    assert words in difference(change(theirs), theirs)


def test_a_tensor_in_anothers_place_is_named() -> None:
    one, other = np.random.default_rng(0).standard_normal((2, 3, 3)).astype(np.float32)
    assert difference(one, other, {"key": one, "query": other}) == "key in its place"
