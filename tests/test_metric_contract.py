"""What every metric of the registry keeps to, whatever it measures."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from image_networks import as_floats, pictures

from dew import metrics
from dew.artifacts import ImageGrid, Representations, TokenScores
from dew.nn.clip import ClipEncoder, ClipModel, ClipSpec, ImageInput, TowerSpec
from dew.nn.perceptual_trunks import PerceptualDistanceNet, PerceptualNetwork

ROWS = 24
LEVELS, REAL = pictures(ROWS, 40, 40, seed=1), pictures(ROWS, 40, 40, seed=2)
GENERATOR = np.random.default_rng(0)
LABELS = np.tile(np.arange(3, dtype=np.int32), ROWS // 3)
FEATURES = (np.eye(3)[LABELS] + GENERATOR.normal(0, 0.4, (ROWS, 3))).astype(np.float32)
LOSSES = GENERATOR.gamma(2, 1, (ROWS, 5)).astype(np.float32)
WEIGHTS = (GENERATOR.random((ROWS, 5)) < 0.7).astype(np.float32)


class Words:
    """A tokenizer of one id a letter, between CLIP's start and end token."""

    bos_token_id, eos_token_ids, pad_token_id, vocab_size = 30, (31,), 31, 32

    def encode_batch(self, texts, *, add_special_tokens=True):
        return [[30, *(ord(letter) % 26 for letter in text), 31] for text in texts]


def mean_colours(levels):
    return levels.reshape(len(levels), -1, 3).mean(1)


def few_classes(levels):
    return mean_colours(levels) / 50


def drawn_clip() -> ClipEncoder:
    tower = TowerSpec(emb_features=8, num_layers=1, num_heads=2, mlp_features=16)
    spec = ClipSpec(tower, tower, 8, vocab_size=32, image_size=16, patch_size=8)
    tokens, ends = np.zeros((1, 2), np.int32), np.zeros(1, np.int32)
    images = np.zeros((1, 16, 16, 3), np.float32)
    variables = drawn(ClipModel(spec), tokens, ends, images)
    return ClipEncoder(spec, variables, Words(), ImageInput(16, 16), end_token=31)


def drawn(module, *inputs):
    """Return variables of a module's shapes, drawn without compiling its initialisers."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    generator = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: np.abs(generator.normal(0, 0.2, leaf.shape)).astype(np.float32), shapes
    )


def drawn_trunk() -> PerceptualNetwork:
    pairs = np.zeros((1, 2, 40, 40, 3), np.float32)
    return PerceptualNetwork("squeeze", drawn(PerceptualDistanceNet("squeeze"), pairs))


Given = tuple[Any, Mapping[str, np.ndarray]]


def images(rows) -> Given:
    made = ImageGrid(as_floats(LEVELS[rows]), tuple(f"caption {i}" for i in np.arange(ROWS)[rows]))
    return made, {"image": REAL[rows]}


def representations(rows) -> Given:
    return Representations(FEATURES[rows], LABELS[rows]), {}


def token_scores(rows) -> Given:
    return TokenScores(LOSSES[rows], WEIGHTS[rows]), {}


@dataclass(frozen=True)
class Kind:
    """How a metric is built, and what it is given for some of `ROWS` rows."""

    build: Callable[[], Any]
    given: Callable[[Any], Given]


KINDS = {
    "accuracy": Kind(metrics.accuracy, representations),
    "clip": Kind(lambda: metrics.clip(drawn_clip()), images),
    "fid": Kind(lambda: metrics.fid(mean_colours), images),
    "inception_score": Kind(lambda: metrics.inception_score(few_classes, 1), images),
    "kid": Kind(lambda: metrics.kid(mean_colours, subset_size=8), images),
    "knn_probe": Kind(lambda: metrics.knn_probe(), representations),
    "linear_probe": Kind(lambda: metrics.linear_probe(), representations),
    "lpips": Kind(lambda: metrics.lpips(drawn_trunk()), images),
    "perplexity": Kind(metrics.perplexity, token_scores),
    "psnr": Kind(metrics.psnr, images),
    "ssim": Kind(metrics.ssim, images),
    "text_perplexity": Kind(metrics.text_perplexity, token_scores),
}
# Fitted on one half of each batch and tested on the other: they depend on the batches by design.
BY_BATCH = ("knn_probe", "linear_probe")
# Its subsets are drawn by place, as torch-fidelity draws them.
BY_ORDER = ("kid",)
SPLITS = [(ROWS,), (4, 20), (1, 23), (8, 8, 8), (5, 1, 7, 11), (1,) * ROWS]


@pytest.fixture(scope="module")
def built():
    """Every metric, built once: some compile a network."""
    return {name: kind.build() for name, kind in KINDS.items()}


def score(metric, parts):
    total = metric(*parts[0])
    for part in parts[1:]:
        total = metric.merge(total, metric(*part))
    return metric.finalize(total)


def cut(name, sizes):
    edges = [0, *itertools.accumulate(sizes)]
    return [KINDS[name].given(slice(*edge)) for edge in itertools.pairwise(edges)]


def test_every_metric_of_the_registry_is_under_contract():
    assert sorted(metrics) == sorted(KINDS)


def test_no_two_names_are_alike(built):
    names = [metric.name for metric in built.values()]
    assert len({*names}) == len(names)
    assert built["linear_probe"].name == "batch_linear_probe_accuracy"
    assert built["knn_probe"].name == "batch_knn_probe_accuracy"


@pytest.mark.parametrize("name", KINDS)
def test_a_metric_reads_one_artifact_and_keeps_nothing(built, name):
    metric, given = built[name], KINDS[name].given(slice(0, 12))
    assert isinstance(given[0], metric.reads)
    first = score(metric, [given])
    score(metric, [KINDS[name].given(slice(12, ROWS))])
    assert score(metric, [given]) == first
    assert type(first) is float
    with pytest.raises(AttributeError):
        metric.name = "other"
    assert metrics[name]().name == metric.name


@pytest.mark.parametrize("name", sorted({*KINDS} - {*BY_BATCH}))
def test_the_score_does_not_depend_on_the_split(built, name):
    """Oracle, the pass in one batch."""
    whole = score(built[name], cut(name, SPLITS[0]))
    assert math.isfinite(whole)
    for sizes in SPLITS[1:]:
        assert score(built[name], cut(name, sizes)) == pytest.approx(whole, rel=1e-6), sizes


@pytest.mark.parametrize("name", sorted({*KINDS} - {*BY_ORDER}))
def test_the_score_does_not_depend_on_the_order_of_the_batches(built, name):
    parts = cut(name, (7, 8, 9))
    scores = [score(built[name], order) for order in itertools.permutations(parts)]
    assert scores == pytest.approx([scores[0]] * len(scores), rel=1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_a_pass_that_counted_nothing_is_an_error_that_names_the_metric(built, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=built[name].name):
            score(built[name], [KINDS[name].given(slice(0, 0))] * 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", KINDS)
def test_one_value_that_is_not_finite_shows_in_the_score(built, name, bad):
    parts = cut(name, (12, 12))
    artifact, batch = parts[1]
    field = {ImageGrid: "images", Representations: "features", TokenScores: "losses"}[
        type(artifact)
    ]
    values = np.array(getattr(artifact, field))
    counted = (
        np.argwhere(WEIGHTS[12:] > 0)[0] if field == "losses" else (3,) + (0,) * (values.ndim - 1)
    )
    values[tuple(counted)] = bad
    spoiled = [parts[0], (artifact.replace(**{field: values}), batch)]
    for order in (spoiled, spoiled[::-1]):
        assert not math.isfinite(score(built[name], order))
