"""The checks of metrics pass what is right, and fail each of the faults that people met."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import parity.pins
from dew.evaluation import image_quality
from dew.evaluation.frechet import frechet_distance
from parity.check import METRIC, judge
from parity.metric_checks import METRICS
from parity.running import load_check
from parity.scores import compare_scores

pytestmark = pytest.mark.torch
SHORT = ("psnr", "ssim")
"""The others load networks; tests of each metric hold it to its tool with few pictures."""


def judged(name, seed=0):
    return judge(load_check(name), None, seed=seed)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name not in SHORT else []) for name in METRICS],
)
def test_each_metric_is_its_tools(name):
    """Oracle, the tool: pictures of every kind and size, uneven batches, one picture and none."""
    check = load_check(name)
    assert (check.name, check.kind) == (name, METRIC)
    verdict = judged(name)
    assert verdict.passed, verdict.reason
    cases = " ".join(verdict.figures)
    for word in ("16-bit", "mixed sizes", "one picture", "no picture"):
        assert word in cases or name == "inception score"
    json.dumps(verdict.to_dict())


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("psnr", {"_decibels": lambda error: 10 * math.log10(255.0 / max(error, 1e-9))}),
        ("psnr", {"PEAK": 256}),
        ("psnr", {"_squared_error": lambda made, real: float((made - real).astype(float).mean())}),
        ("ssim", {"DEVIATION": 1.6}),
        ("ssim", {"CONTRAST": (0.03 * 256) ** 2}),
        ("ssim", {"LUMINANCE": 0.01**2}),
    ],
)
def test_a_fault_in_a_paired_metric_is_seen(name, fault, monkeypatch):
    for attribute, wrong in fault.items():
        monkeypatch.setattr(image_quality, attribute, wrong)
    verdict = judged(name)
    assert not verdict.passed
    assert "the reference" in verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place", "wrong"),
    [
        # P077, P078: another resizing, another shift of levels, an average that counts padding.
        ("fid", "dew.nn.fid_sampling.MODES", "torchmetrics"),
        ("torch-fidelity fid", "dew.nn.fid_sampling.MODES", "pytorch-fid"),
        ("clean fid", "dew.nn.fid_sampling.MODES", "torchmetrics"),
        ("fid", "dew.nn.inception.averaged", "padding"),
        ("fid", "dew.evaluation.image_folders.frechet_distance", "biased"),
    ],
)
def test_a_fault_in_fid_is_seen(name, place, wrong, monkeypatch):
    import jax

    from dew.nn import fid_sampling

    _, _, attribute = place.rpartition(".")
    if attribute == "MODES":
        mode = load_check(name).mode
        modes = {**fid_sampling.MODES, mode: fid_sampling.MODES[wrong]}
        monkeypatch.setattr(fid_sampling, "MODES", modes)
    elif wrong == "padding":
        from flax import linen as nn

        monkeypatch.setattr(place, lambda x: nn.avg_pool(x, (3, 3), padding="SAME"))
    else:

        def biased(real, generated):
            return frechet_distance(real, generated) * (real.count - 1) / real.count

        monkeypatch.setattr(place, biased)
    jax.clear_caches()
    assert not judged(name).passed
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["none", "context counted", "a token skipped"])
def test_strided_perplexity_is_hugging_faces_and_its_faults_are_seen(fault, monkeypatch, tmp_path):
    """P094 to P096: oracle, the recipe of transformers' documentation."""
    from dew.data.windows import WindowRows
    from parity import tiny

    take = WindowRows.take

    def faulty(rows, indices):
        batch = take(rows, indices)
        if fault == "context counted":
            del batch["weights"]
        elif fault == "a token skipped":
            weights = batch["weights"].copy()
            first = np.argmax(weights > 0, axis=1)
            weights[np.arange(len(weights)), np.maximum(first, 1)] = 0
            batch["weights"] = weights
        return batch

    monkeypatch.setattr(WindowRows, "take", faulty if fault != "none" else take)
    verdict = judge(load_check("perplexity"), tiny.subject("llama", tmp_path, seed=0), seed=0)
    assert verdict.passed is (fault == "none"), verdict.figures
    assert ("strided" in verdict.reason) is (fault != "none")


def test_a_reference_of_a_wrong_version_is_named_with_its_pin(monkeypatch):
    """P071: pytorch-fid calls scipy's sqrtm as versions before 1.18 had it."""
    found = parity.pins.version
    monkeypatch.setattr(
        parity.pins, "version", lambda name: "1.18.0" if name == "scipy" else found(name)
    )
    parity.pins.unmet.cache_clear()
    verdict = judged("fid")
    parity.pins.unmet.cache_clear()
    assert not verdict.passed
    assert verdict.reason.startswith("not proven")
    assert "scipy 1.18.0" in verdict.reason
    assert "pip install 'scipy<1.18'" in verdict.reason


def test_scores_are_held_case_by_case():
    """Closed form: a number, none on either side, and none on one side alone."""

    def compared(ours):
        return compare_scores(ours, {"a": 2.0, "b": "no number"}, relative=1e-3, absolute=1e-6)

    assert compared({"a": 2.001, "b": "no number"}).passed
    assert not compared({"a": 2.01, "b": "no number"}).passed
    assert not compared({"a": 2.0, "b": 1.0}).passed
    lost = compared({"a": "no number", "b": "no number"})
    assert not lost.passed
    assert lost.reason == "a: dew no number, the reference 2"
    assert not compared({"a": np.nan, "b": "no number"}).passed
