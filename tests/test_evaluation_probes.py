"""Probes: each batch is cut in halves, and the mean of the batch accuracies is the score."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dew import metrics
from dew.artifacts import Representations
from dew.errors import InputRefused

PROBES = [metrics.linear_probe(), metrics.knn_probe()]


def part(probe, features, labels):
    return probe(Representations(np.asarray(features), np.asarray(labels)), {})


def clusters(rows: int, seed: int = 0, spread: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Three far apart clusters in five dimensions."""
    generator = np.random.default_rng(seed)
    labels = np.arange(rows) % 3
    centres = np.eye(5)[:3] * 4
    return centres[labels] + spread * generator.normal(size=(rows, 5)), labels


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_classes_far_apart_are_told_apart_and_features_without_classes_are_not(probe):
    assert probe.finalize(part(probe, *clusters(60))) == 1.0
    generator = np.random.default_rng(1)
    parts = [part(probe, generator.normal(size=(40, 5)), generator.integers(0, 4, 40))]
    for _ in range(49):
        more = part(probe, generator.normal(size=(40, 5)), generator.integers(0, 4, 40))
        parts.append(probe.merge(parts[-1], more))
    # Chance is 1/4; the deviation of the mean over 1000 probed rows is 0.014.
    assert probe.finalize(parts[-1]) == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_the_score_is_the_mean_of_the_batches_in_any_order(probe):
    right = part(probe, *clusters(12))
    features, labels = clusters(8)
    wrong = part(probe, features, np.concatenate([labels[:4], (labels[4:] + 1) % 3]))
    assert (right.total, wrong.total) == (1.0, 0.0)
    for one, other in ((right, wrong), (wrong, right)):
        assert probe.finalize(probe.merge(one, other)) == 0.5


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_batches_too_small_to_cut_are_left_out_and_a_pass_of_them_is_an_error(probe):
    tiny = part(probe, np.ones((1, 5)), [0])
    padded = part(probe, np.ones((4, 5)), [2, -1, -1, -1])
    whole = part(probe, *clusters(12))
    assert probe.finalize(probe.merge(probe.merge(tiny, padded), whole)) == 1.0
    with pytest.raises(ValueError, match="no batch of this pass holds two records"):
        probe.finalize(probe.merge(tiny, padded))


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_features_that_are_not_finite_make_the_score_not_a_number(probe):
    features, labels = clusters(12)
    features[3, 1] = np.inf
    total = probe.merge(part(probe, *clusters(12)), part(probe, features, labels))
    assert math.isnan(probe.finalize(total))


@pytest.mark.parametrize(("rows", "width"), [(40, 6), (12, 30)])
def test_the_linear_probe_is_ridge_regression(rows, width):
    """Oracle: least squares of the rows with the square root of the penalty below them."""
    generator = np.random.default_rng(2)
    features = generator.normal(size=(rows, width)) * generator.uniform(0.1, 5, width)
    labels = generator.integers(0, 3, rows)
    half = rows // 2
    fitted, probed = features[:half], features[half:]
    mean, deviation = fitted.mean(0), fitted.std(0)
    x, y = (fitted - mean) / deviation, np.eye(3)[labels[:half]]
    below = np.sqrt(1e-2 * half) * np.eye(width)
    targets = np.concatenate([y - y.mean(0), np.zeros((width, 3))])
    weights = np.linalg.lstsq(np.concatenate([x, below]), targets, rcond=None)[0]
    guesses = np.argmax((probed - mean) / deviation @ weights + y.mean(0), axis=1)
    wanted = (guesses == labels[half:]).mean()
    assert part(metrics.linear_probe(), features, labels).total == wanted


def test_nearer_neighbours_weigh_more():
    """By hand: one neighbour at cosine 1 against two at cosine 0.6, weights 1 and 2 e^(-0.4/T)."""
    fitted = [[1, 0], [0.6, 0.8], [0.6, -0.8]]
    probed = [[2, 0]] * 3
    features, labels = np.array([*fitted, *probed], float), np.array([0, 1, 1, 0, 0, 0])
    assert part(metrics.knn_probe(temperature=0.07), features, labels).total == 1.0
    assert part(metrics.knn_probe(temperature=1.0), features, labels).total == 0.0
    assert part(metrics.knn_probe(neighbours=1, temperature=1.0), features, labels).total == 1.0


def test_probes_bear_the_names_of_the_guide_and_refuse_settings_that_cannot_work():
    assert [probe.name for probe in PROBES] == [
        "batch_linear_probe_accuracy",
        "batch_knn_probe_accuracy",
    ]
    with pytest.raises(InputRefused, match="penalty is 0"):
        metrics.linear_probe(penalty=0)
    with pytest.raises(InputRefused, match="0 neighbours"):
        metrics.knn_probe(neighbours=0)
