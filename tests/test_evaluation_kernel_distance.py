"""KID and the inception score: torch-fidelity's numbers on the same features."""

from __future__ import annotations

import math

import numpy as np
import pytest
from image_networks import as_floats, pictures

from dew import metrics
from dew.artifacts import ImageGrid
from dew.errors import InputRefused
from dew.evaluation.inception_score import inception_score
from dew.evaluation.kernel_distance import kernel_distance


def rows(count, features, seed, shift=0.0):
    generator = np.random.default_rng(seed)
    return np.abs(generator.normal(size=(count, features)) + shift).astype(np.float32)


@pytest.mark.torch
@pytest.mark.parametrize(("counts", "features"), [((300, 211), 64), ((40, 33), 2048)])
def test_kid_is_that_of_torch_fidelity(counts, features):
    """Oracle, its subsets from the same seed; more and fewer images than features."""
    import torch
    from torch_fidelity.metric_kid import kid_features_to_metric

    sides = rows(counts[0], features, 1), rows(counts[1], features, 2, 0.2)
    expected = kid_features_to_metric(
        *map(torch.from_numpy, sides), kid_subsets=20, kid_subset_size=30, verbose=False
    )
    mean, deviation = kernel_distance(
        *(side.astype(np.float64) for side in sides), subsets=20, subset_size=30
    )
    # Its kernel is float32.
    assert mean == pytest.approx(expected["kernel_inception_distance_mean"], rel=1e-5, abs=1e-6)
    assert deviation == pytest.approx(expected["kernel_inception_distance_std"], rel=1e-4, abs=1e-6)


def test_kid_of_all_pairs_is_the_unbiased_estimate():
    """Closed form: a sum over all pairs of unlike rows."""
    first, second = rows(5, 3, 1).astype(float), rows(5, 3, 2).astype(float)

    def kernel(x, y):
        return (x @ y / 3 + 1) ** 3

    within = [
        sum(kernel(x, y) for i, x in enumerate(side) for j, y in enumerate(side) if i != j) / 20
        for side in (first, second)
    ]
    between = sum(kernel(x, y) for x in first for y in second) / 25
    mean, deviation = kernel_distance(first, second, subsets=3, subset_size=5)
    assert mean == pytest.approx(sum(within) - 2 * between, rel=1e-12)
    assert deviation == pytest.approx(0, abs=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize(("count", "splits"), [(100, 10), (23, 5), (7, 7), (9, 1)])
def test_the_inception_score_is_that_of_torch_fidelity(count, splits):
    """Oracle, with its order; uneven parts, and parts of one image."""
    import torch
    from torch_fidelity.metric_isc import isc_features_to_metric

    scores = rows(count, 1008, 3, 1.0) * 3
    for shuffle in (True, False):
        expected = isc_features_to_metric(torch.from_numpy(scores), splits, shuffle, 2020)
        given = inception_score(
            scores.astype(np.float64), splits=splits, seed=2020 if shuffle else None
        )
        assert given == pytest.approx(tuple(expected.values()), rel=1e-9, abs=1e-12)


def test_sure_and_even_classes_score_their_number_and_equal_ones_score_one():
    """Closed form."""
    sure = np.tile(np.eye(4) * 1e3, (5, 1))
    assert inception_score(sure, splits=1)[0] == pytest.approx(4, rel=1e-12)
    assert inception_score(np.ones((6, 9)), splits=2) == pytest.approx((1, 0), abs=1e-12)


def test_too_few_images_say_what_is_needed():
    levels = pictures(4, 8, 8)
    given = ImageGrid(as_floats(levels)), {"image": levels}
    kid = metrics.kid(lambda pixels: pixels.mean((1, 2)))
    with pytest.raises(ValueError, match="4 generated and 4 real images; a subset takes 1000"):
        kid.finalize(kid(*given))
    score = metrics.inception_score(lambda pixels: pixels.mean((1, 2)))
    with pytest.raises(ValueError, match="4 images for 10 parts"):
        score.finalize(score(*given))
    for build, named in ((metrics.kid, "metrics.kid"), (metrics.inception_score, "features=1008")):
        with pytest.raises(InputRefused, match=named):
            build()(*given)
    with pytest.raises(InputRefused, match="10 subsets of 1 from 4 and 4 rows"):
        kernel_distance(np.ones((4, 2)), np.ones((4, 2)), subsets=10, subset_size=1)
    with pytest.raises(InputRefused, match="features of 3 and 2"):
        kernel_distance(np.ones((4, 2)), np.ones((4, 3)), subset_size=2)


def test_rows_that_are_not_finite_make_both_nan():
    bad = rows(12, 4, 1).astype(float)
    bad[3, 1] = np.inf
    assert math.isnan(kernel_distance(bad, rows(12, 4, 2).astype(float), subset_size=4)[0])
    assert math.isnan(inception_score(bad, splits=2)[0])
