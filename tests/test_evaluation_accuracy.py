"""Accuracy and mean loss: counts over a pass, closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dew import metrics
from dew.artifacts import Representations, TokenScores
from dew.errors import InputRefused
from dew.evaluation.mean_loss import MeanLoss

LOGITS = np.array([[3, 1, 2], [0, 5, 1], [1, 2, 9], [4, 0, 1]], np.float32)
LABELS = np.array([0, 2, 0, 1], np.int32)


def score(metric, *parts) -> float:
    total = None
    for features, labels in parts:
        part = metric(Representations(np.asarray(features), np.asarray(labels)), {})
        total = part if total is None else metric.merge(total, part)
    return metric.finalize(total)


@pytest.mark.parametrize(("top", "wanted"), [(1, 1 / 4), (2, 2 / 4), (3, 1.0)])
def test_a_record_is_right_if_its_label_is_among_the_largest_logits(top, wanted):
    """By hand: the labels' ranks are 1, 2, 3 and 3."""
    assert score(metrics.accuracy(top=top), (LOGITS, LABELS)) == wanted


def test_a_pass_cut_into_uneven_batches_scores_as_the_whole():
    metric = metrics.accuracy()
    cut = score(metric, (LOGITS[:3], LABELS[:3]), (LOGITS[3:], LABELS[3:]))
    assert cut == score(metric, (LOGITS, LABELS))


def test_equal_logits_are_not_all_right():
    assert score(metrics.accuracy(), (np.zeros((3, 3)), np.arange(3))) == pytest.approx(1 / 3)
    assert score(metrics.accuracy(top=2), (np.zeros((3, 3)), np.arange(3))) == pytest.approx(2 / 3)


def test_a_negative_label_does_not_count_and_a_pass_of_them_is_an_error():
    """P055: labels of -100 stand at padding."""
    labels = np.array([0, -100, -1, 1])
    assert score(metrics.accuracy(), (LOGITS, labels)) == 1 / 2
    with pytest.raises(ValueError, match="no record of this pass counts"):
        score(metrics.accuracy(), (LOGITS, np.full(4, -1)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_make_the_score_not_a_number(bad):
    logits = LOGITS.copy()
    logits[2, 1] = bad
    assert math.isnan(score(metrics.accuracy(), (LOGITS, LABELS), (logits, LABELS)))
    uncounted = np.array([0, 2, -1, 1])
    assert not math.isnan(score(metrics.accuracy(), (logits, uncounted)))


def test_a_class_ruled_out_by_minus_infinity_is_only_unlikely():
    logits = LOGITS.copy()
    logits[:, 1] = -np.inf
    assert score(metrics.accuracy(), (logits, LABELS)) == 1 / 2


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (LOGITS, np.array([0, 1, 2, 3]), "label 3 with logits of 3 classes"),
        (LOGITS, np.zeros(3, int), r"features \(4, 3\) and int64 labels \(3,\)"),
        (LOGITS, np.zeros(4), "float64 labels"),
    ],
)
def test_what_is_no_classification_is_refused(features, labels, message):
    with pytest.raises(InputRefused, match=message):
        score(metrics.accuracy(), (features, labels))
    with pytest.raises(InputRefused, match="top is 0"):
        metrics.accuracy(top=0)


def test_the_mean_loss_weighs_every_target_once():
    metric = MeanLoss("mse")
    parts = [
        metric(TokenScores(np.array([[4.0], [1.0]]), np.array([[1.0], [0.5]])), {}),
        metric(TokenScores(np.array([[9.0], [np.nan]]), np.array([[2.0], [0.0]])), {}),
    ]
    assert metric.finalize(metric.merge(*parts)) == pytest.approx((4 + 0.5 + 18) / 3.5)
    with pytest.raises(ValueError, match="mse: nothing of this pass counts"):
        metric.finalize(metric(TokenScores(np.ones((1, 1)), np.zeros((1, 1))), {}))
