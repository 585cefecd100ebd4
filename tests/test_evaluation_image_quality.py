"""PSNR and SSIM: the values of scikit-image and torchmetrics, a mean over images."""

from __future__ import annotations

import math
import warnings

import jax
import numpy as np
import pytest
from image_networks import as_floats, pictures

from dew import metrics
from dew.artifacts import ImageGrid, VideoGrid
from dew.errors import InputRefused
from dew.evaluation import evaluate
from dew.evaluation.image_quality import PooledSignalToNoise
from dew.objectives.base import Objective

TOLERANCE = 1e-6
REAL = pictures(3, 40, 30, seed=1)
NEAR = np.clip(
    REAL + np.random.default_rng(0).normal(0, [[[[4]]], [[[20]]], [[[60]]]], REAL.shape), 0, 255
).astype(np.uint8)
PAIRS = {
    "noise": (NEAR, REAL),
    "unlike": (pictures(3, 40, 30, seed=2), REAL),
    "grey": (NEAR[..., :1], REAL[..., :1]),
    "dark": (NEAR // 4, REAL // 4),  # P105: the brightest level is below 64
    "flat": (np.full((2, 12, 11, 3), 7, np.uint8), np.full((2, 12, 11, 3), 9, np.uint8)),
}


def score(metric, made, real):
    return metric.finalize(metric(ImageGrid(as_floats(made)), {"image": real}))


@pytest.fixture(params=PAIRS, ids=str)
def pair(request):
    return PAIRS[request.param]


def tensors(*batches):
    import torch

    return [torch.from_numpy(batch.astype(np.float64)).permute(0, 3, 1, 2) for batch in batches]


def test_psnr_is_that_of_scikit_image(pair):
    """P105: oracle with the range of bytes given."""
    from skimage.metrics import peak_signal_noise_ratio

    each = [peak_signal_noise_ratio(y, x, data_range=255) for x, y in zip(*pair, strict=True)]
    assert score(metrics.psnr(), *pair) == pytest.approx(np.mean(each), rel=TOLERANCE)


@pytest.mark.torch
def test_psnr_is_that_of_torchmetrics(pair):
    from torchmetrics.functional.image import peak_signal_noise_ratio

    each = peak_signal_noise_ratio(*tensors(*pair), data_range=255.0, dim=(1, 2, 3))
    pooled = peak_signal_noise_ratio(*tensors(*pair), data_range=255.0)
    assert score(metrics.psnr(), *pair) == pytest.approx(float(each), rel=TOLERANCE)
    assert score(PooledSignalToNoise(), *pair) == pytest.approx(float(pooled), rel=TOLERANCE)


def test_ssim_is_that_of_scikit_image(pair):
    """P104: oracle with the paper's window and covariance, whose crop is the valid one."""
    from skimage.metrics import structural_similarity

    each = [
        structural_similarity(
            x,
            y,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=255,
            channel_axis=-1,
        )
        for x, y in zip(*pair, strict=True)
    ]
    assert score(metrics.ssim(), *pair) == pytest.approx(np.mean(each), abs=TOLERANCE)


@pytest.mark.torch
def test_ssim_is_that_of_torchmetrics_with_and_without_the_border(pair):
    """P104: its value counts windows that reach over the edge; its map, cropped, is the paper's."""
    from torchmetrics.functional.image import structural_similarity_index_measure as theirs

    given = {"data_range": 255.0, "sigma": 1.5, "kernel_size": 11}
    whole, full = theirs(*tensors(*pair), return_full_image=True, **given)
    inside = full[..., 5:-5, 5:-5].mean()
    assert score(metrics.ssim(border="reflect"), *pair) == pytest.approx(
        float(whole), abs=TOLERANCE
    )
    assert score(metrics.ssim(), *pair) == pytest.approx(float(inside), abs=TOLERANCE)
    unit = [tensor / 255 for tensor in tensors(*pair)]
    scaled = theirs(*unit, **given | {"data_range": 1.0})
    assert score(metrics.ssim(border="reflect"), *pair) == pytest.approx(
        float(scaled), abs=TOLERANCE
    )


def test_the_logarithm_comes_before_the_mean_and_the_pooled_one_after():
    """P106: closed form, mean squared errors of 0.5 and 0.1 of the squared peak."""
    real = np.zeros((2, 100, 100, 1), np.uint8)
    made = real.copy()
    made[0, :50], made[1, :10] = 255, 255
    assert score(metrics.psnr(), made, real) == pytest.approx(6.505, abs=1e-3)
    assert score(PooledSignalToNoise(), made, real) == pytest.approx(5.229, abs=1e-3)


def test_equal_images_give_infinite_psnr_and_an_ssim_of_one():
    assert score(metrics.psnr(), REAL, REAL) == math.inf
    assert score(metrics.ssim(), REAL, REAL) == pytest.approx(1, abs=1e-12)
    one_equal = np.concatenate([REAL[:1], NEAR[1:]])
    assert score(metrics.psnr(), one_equal, REAL) == math.inf
    assert score(PooledSignalToNoise(), one_equal, REAL) < 60


@pytest.mark.parametrize("name", ["psnr", "ssim"])
def test_each_frame_of_a_video_weighs_once(name):
    """Oracle: the frames as images, in clips of unlike length."""
    metric = metrics[name]()
    expected = score(metric, NEAR, REAL)
    clips = [slice(0, 1), slice(1, 3)]
    parts = [
        metric(VideoGrid(as_floats(NEAR[clip])[None]), {"video": REAL[clip][None]})
        for clip in clips
    ]
    assert metric.finalize(metric.merge(*parts)) == pytest.approx(expected, rel=1e-12)


class Copying(Objective):
    """Gives back the batch's own images as what it generated."""

    def evaluate(self, variables, batch, step):
        return ImageGrid(batch["made"]), VideoGrid(batch["made"][:, None])


def test_an_evaluation_scores_images_against_the_batch():
    """Oracle, each metric on the whole at once."""
    batches = [
        {"made": as_floats(NEAR[rows]), "image": REAL[rows]} for rows in (slice(2), slice(2, 3))
    ]
    chosen = (
        metrics.psnr(),
        metrics.ssim(),
        metrics.fid(lambda levels: levels.mean((1, 2))),
        metrics.ssim(border="reflect", name="ssim_reflect"),
    )
    with pytest.warns(UserWarning, match="3 generated and 3 real images for 3 features"):
        event = evaluate(Copying(), {}, batches, key=jax.random.key(0), metrics=chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {f"val/{metric.name}": score(metric, NEAR, REAL) for metric in chosen}
    assert event.scores == pytest.approx(expected, rel=1e-6)
    assert (event.records, event.coordinated_batches) == (3, 2)


def test_pairs_that_do_not_fit_are_refused():
    grid = ImageGrid(as_floats(NEAR))
    for name in ("psnr", "ssim"):
        with pytest.raises(InputRefused, match=rf"{name}: \(3, 40, 30, 3\) .* \(2, 40, 30, 3\)"):
            metrics[name]()(grid, {"image": REAL[:2]})
    small = ImageGrid(as_floats(NEAR[:, :10]))
    with pytest.raises(InputRefused, match="10 x 30; its window needs sides of at least 11"):
        metrics.ssim()(small, {"image": REAL[:, :10]})
    with pytest.raises(InputRefused, match=r"\(3, 40, 30\); expected \[N, H, W, C\]"):
        metrics.psnr()(grid, {"image": REAL[..., 0]})
    with pytest.raises(InputRefused, match="border is 'same'"):
        metrics.ssim(border="same")
