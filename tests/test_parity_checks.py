"""Parity's checks pass a right port and fail a wrong one, each fault by the check that sees it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_subjects import TinySubjects

from parity import tiny
from parity.__main__ import main
from parity.check import Finding, Verdict, judge
from parity.running import CHECKS, FULL, REPORT, load_check
from parity.subject import Subject, load_subject

pytestmark = pytest.mark.torch

# The other families are held to these checks in test_families.
NAMES = tuple(name for name in tiny.MODELS if name.startswith(("llama", "gpt2")))


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    """Tiny random checkpoints, written by transformers when they are first wanted."""
    pytest.importorskip("torch")
    return TinySubjects(tmp_path_factory.mktemp("tiny"))


def judged(check: str, subject: Subject, seed: int = 0) -> Verdict:
    """Return the verdict of the check called `check`."""
    return judge(load_check(check), subject, seed=seed)


def broken(subject: Subject, **fields: object) -> Subject:
    """Return the subject with a model that differs from its config."""
    model = subject.bundle.model.clone(**fields)
    return dataclasses.replace(subject, bundle=subject.bundle.replace(model=model))


def with_leaf(subject: Subject, path: tuple[str, ...], change) -> Subject:
    """Return the subject with one leaf of its parameters changed."""
    params = jax.tree.map(lambda leaf: leaf, subject.bundle.variables["params"])
    node = params
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = change(node[path[-1]])
    return dataclasses.replace(subject, bundle=subject.bundle.replace(variables={"params": params}))


# torch and transformers are the reference of every case below.


@pytest.mark.parametrize(
    ("name", "check"),
    [
        *((name, check) for name in NAMES for check in ("weights", "logits")),
        *((name, "perplexity") for name in ("llama biased", "llama dynamic", "gpt2")),
    ],
)
def test_a_right_port_passes_the_checks_that_only_look(
    subjects: dict[str, Subject], name: str, check: str
) -> None:
    verdict = judged(check, subjects[name])
    assert verdict.passed, verdict


@pytest.mark.parametrize("name", ["llama", "llama biased", "gpt2", "gpt2 untied"])
def test_a_right_port_has_torchs_loss_and_gradients(
    subjects: dict[str, Subject], name: str
) -> None:
    verdict = judged("loss and gradient", subjects[name])
    assert verdict.passed, verdict


@pytest.mark.parametrize(
    "name", ["llama tied", "gpt2", pytest.param("resnet labels", marks=pytest.mark.slow)]
)
def test_ten_updates_move_every_weight_as_torchs_adamw_does(
    subjects: dict[str, Subject], name: str
) -> None:
    verdict = judged("update", subjects[name])
    assert verdict.passed, verdict


@pytest.mark.parametrize("name", ["llama llama3", "gpt2"])
def test_greedy_tokens_are_transformers_alone_and_left_padded(
    subjects: dict[str, Subject], name: str
) -> None:
    verdict = judged("greedy", subjects[name])
    assert verdict.passed, verdict
    assert verdict.figures["tokens"] == 4 * (16 + 64)


@pytest.mark.parametrize("name", ["llama tied", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_beams_and_padded_rows_are_transformers(subjects: dict[str, Subject], name: str) -> None:
    for check in ("beams", "padding"):
        verdict = judged(check, subjects[name])
        assert verdict.passed, verdict


@pytest.mark.parametrize("name", ["llama yarn", "llama tied", "gpt2 untied"])
def test_an_export_holds_the_sources_bytes_and_transformers_reads_it(
    subjects: dict[str, Subject], name: str
) -> None:
    for check in ("export", "round trip"):
        verdict = judged(check, subjects[name])
        assert verdict.passed, verdict


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("llama", {"norm_epsilon": 1e-6}),
        ("llama", {"activation": "gelu"}),
        ("llama yarn", {"rope": "default"}),
        ("llama llama3", {"rope": "theta"}),
        ("llama linear", {"rope": "factor"}),
        ("gpt2", {"norm_epsilon": 1e-6}),
        ("gpt2", {"activation": "gelu"}),
    ],
)
def test_a_wrong_constant_fails_the_logits(
    subjects: dict[str, Subject], name: str, fields: dict[str, object]
) -> None:
    rope = subjects[name].bundle.model.rope
    ropes = {
        "default": dataclasses.replace(rope, kind="default"),
        "theta": dataclasses.replace(rope, theta=10000.0),
        "factor": dataclasses.replace(rope, factor=2.0),
    }
    fields = {key: ropes.get(str(value), value) for key, value in fields.items()}
    verdict = judged("logits", broken(subjects[name], **fields))
    assert not verdict.passed
    assert "length" in verdict.reason


def test_a_transposed_square_kernel_fails_weights_and_logits(subjects: dict[str, Subject]) -> None:
    def transposed(kernel: jax.Array) -> jax.Array:
        layers, width = kernel.shape[:2]
        square = kernel.reshape(layers, width, -1).swapaxes(1, 2)
        return square.reshape(kernel.shape)

    wrong = with_leaf(subjects["llama"], ("layers", "attention", "query", "kernel"), transposed)
    weights = judged("weights", wrong)
    assert not weights.passed
    assert "q_proj.weight differs" in weights.reason
    assert not judged("logits", wrong).passed


def test_a_head_that_is_not_tied_fails_the_gradient(subjects: dict[str, Subject]) -> None:
    """Frozen logits would not tell: the head's share of the embedding's gradient is missing."""
    subject = subjects["llama tied"]
    model = subject.bundle.model
    right = judged("loss and gradient", subject)
    assert right.passed, right

    class Detached(type(model)):
        def head_table(self):
            return jax.lax.stop_gradient(self.embed())

    fields = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
    kept = {key: value for key, value in fields.items() if key not in ("parent", "name")}
    wrong = dataclasses.replace(subject, bundle=subject.bundle.replace(model=Detached(**kept)))
    verdict = judged("loss and gradient", wrong)
    assert not verdict.passed
    assert "embed_tokens" in verdict.reason


def test_a_value_that_is_no_number_fails_the_weights(
    subjects: dict[str, Subject], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    folder = tiny.write("llama", tmp_path, seed=0)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = np.nan
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"model\.norm\.weight"):
        subject = load_subject(folder)
    verdict = judged("weights", subject)
    assert not verdict.passed
    assert "model.norm.weight holds NaN" in verdict.reason
    assert not judged("logits", subject).passed
    assert not judged("perplexity", subject).passed


def test_a_padded_token_that_is_seen_fails_the_padding(subjects: dict[str, Subject]) -> None:
    subject = subjects["gpt2"]
    bundle = subject.bundle

    class Seeing(type(bundle)):
        def __call__(self, **inputs):
            return bundle(input_ids=inputs["input_ids"])

    fields = {field.name: getattr(bundle, field.name) for field in dataclasses.fields(bundle)}
    verdict = judged("padding", dataclasses.replace(subject, bundle=Seeing(**fields)))
    assert not verdict.passed
    assert "logits is off" in verdict.reason


@pytest.mark.parametrize("check", ["weights", "logits", "export"])
def test_running_statistics_are_held_and_written(subjects: dict[str, Subject], check: str) -> None:
    subject = subjects["resnet labels"]
    right = judged(check, subject)
    assert right.passed, right
    path = next(
        tuple(part.key for part in path)
        for path, _ in jax.tree_util.tree_leaves_with_path(subject.bundle.variables["params"])
        if path[-1].key == "running_variance"
    )
    wrong = judged(check, with_leaf(subject, path, lambda leaf: 1.01 * leaf))
    assert not wrong.passed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit labels", "clip"])
def test_certify_takes_models_of_images(tmp_path: Path, name: str) -> None:
    folder = tiny.write(name, tmp_path, seed=0)
    assert main(["certify", str(folder)]) == 0
    report = json.loads((folder / REPORT).read_text())
    skipped = {check["name"] for check in report["skipped"]}
    assert skipped >= {"tokenizer", "greedy", "beams", "perplexity"}
    assert {found["name"] for found in report["verdicts"]} == set(CHECKS) - FULL - skipped


class Precision:
    """A check that asks at which precision its two sides run."""

    name = "precision"
    tolerance = "equal"

    def inputs(self, subject, seed):
        return None

    def ours(self, subject, inputs):
        square = jax.ShapeDtypeStruct((4, 4), "float32")
        return jax.jit(lambda x: x @ x).lower(square).as_text()

    def reference(self, subject, inputs):
        return "precision = [HIGHEST, HIGHEST]"

    def compare(self, ours, reference):
        return Finding(reference in ours, {"program": ours})


def test_products_run_at_the_highest_precision(subjects: dict[str, Subject]) -> None:
    # CASES P041: accelerators round the operands of a float32 product unless they are told not to.
    verdict = judge(Precision(), subjects["gpt2"], seed=0)
    assert verdict.passed, verdict


def test_a_crash_of_one_side_is_a_verdict_that_says_which(subjects: dict[str, Subject]) -> None:
    gone = dataclasses.replace(subjects["gpt2"], bundle=None)
    verdict = judged("weights", gone)
    assert not verdict.passed
    assert verdict.reason.startswith("not proven: dew raised AttributeError")
