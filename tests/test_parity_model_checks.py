"""The checks of hidden states, drawn tokens, dtypes, adapters, processors and loss curves."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutations import patched
from tiny_subjects import TinySubjects

from parity import tiny
from parity.check import Verdict, judge
from parity.checks.sampled import drawn_noise
from parity.running import load_check
from parity.subject import Subject, load_subject

pytestmark = pytest.mark.torch
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> TinySubjects:
    """Tiny random checkpoints, written by transformers when they are first wanted."""
    return TinySubjects(tmp_path_factory.mktemp("tiny"))


def judged(check: str, subject: Subject) -> Verdict:
    """Return the verdict of the check called `check`."""
    return judge(load_check(check), subject, seed=0)


# torch, transformers and peft are the reference of every case below.


@pytest.mark.parametrize(
    ("check", "name"),
    [
        ("hidden states", "gpt2"),
        ("sampled", "gpt2"),
        ("adapters", "gpt2"),
        *(
            pytest.param(check, name, marks=slow)
            for check, names in {
                "hidden states": ("llama", "t5", "whisper", "resnet labels", "clip"),
                "sampled": ("llama", "gemma2"),
                "adapters": ("llama", "bert", "t5", "vit labels"),
                "dtypes": ("llama", "gpt2", "bert", "vit labels"),
                "loss curve": ("llama", "gpt2", "bert"),
            }.items()
            for name in names
        ),
    ],
)
def test_a_right_port_passes(subjects: TinySubjects, check: str, name: str) -> None:
    assert not subjects[name].why_not(check)
    verdict = judged(check, subjects[name])
    assert verdict.passed, verdict


def test_hidden_states_name_the_layer_that_goes_wrong(subjects: TinySubjects) -> None:
    subject = subjects["gpt2"]
    params = subject.bundle.variables["params"]
    up = params["layers"]["mlp"]["up"]
    wrong = {**params["layers"]["mlp"], "up": {**up, "bias": up["bias"].at[1].add(1.0)}}
    layers = {**params["layers"], "mlp": wrong}
    bundle = subject.bundle.replace(variables={"params": {**params, "layers": layers}})
    verdict = judged("hidden states", dataclasses.replace(subject, bundle=bundle))
    assert not verdict.passed
    assert verdict.place == "transformer.h.1"
    layers = ["transformer.h.0", "transformer.h.1", "transformer.h.2"]
    assert verdict.plots[0].places == ["what goes into transformer.h.0", *layers]


@slow
def test_a_temperature_that_is_left_out_draws_other_tokens(subjects: TinySubjects) -> None:
    wrong = patched("dew.sampling.text.scale_temperature", lambda _: lambda logits, _: logits)
    with wrong(subjects["gpt2"]) as subject:
        verdict = judged("sampled", subject)
    assert not verdict.passed
    assert "way 1" in verdict.reason


def test_the_noise_is_gumbels() -> None:
    """Its mean is Euler's constant, and its variance pi squared over six."""
    noise = drawn_noise(3, 2, 500, 100).astype(np.float64)
    assert noise.shape == (2, 500, 100)
    assert abs(noise.mean() - np.euler_gamma) < 0.02
    assert abs(noise.var() - np.pi**2 / 6) < 0.03


def test_pictures_become_transformers_pixels(tmp_path: Path) -> None:
    from transformers import ViTImageProcessor

    folder = tiny.write("vit labels", tmp_path, seed=0)
    ViTImageProcessor(size={"height": 24, "width": 24}).save_pretrained(folder)
    subject = load_subject(folder)
    verdict = judged("processor", subject)
    assert verdict.passed, verdict
    assert verdict.figures["images"] == 5
    bundle = subject.bundle.replace(processor=halved(subject.bundle.processor))
    wrong = dataclasses.replace(subject, bundle=bundle)
    assert not judged("processor", wrong).passed


def test_sounds_become_transformers_features(tmp_path: Path) -> None:
    from transformers import Wav2Vec2FeatureExtractor

    folder = tiny.write("wav2vec2 bare", tmp_path, seed=0)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    verdict = judged("processor", load_subject(folder))
    assert verdict.passed, verdict
    assert verdict.figures["sounds"] == 3


def test_a_check_that_does_not_fit_says_why(subjects: TinySubjects) -> None:
    assert "no processor" in subjects["gpt2"].why_not("processor")


def halved(processor: Any) -> Any:
    """Return an image processor whose pixels are half as large."""
    settings = dataclasses.replace(processor.settings, scale=processor.settings.scale / 2)
    return dataclasses.replace(processor, settings=settings)
