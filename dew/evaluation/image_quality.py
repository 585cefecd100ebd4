"""PSNR and SSIM: how near generated images come to real ones, pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dew.artifacts import ImageGrid, VideoGrid
from dew.errors import InputRefused
from dew.evaluation.image_mean import ImageMean, ImageSum, image_sum
from dew.evaluation.pixels import ImageOrVideo, Reference, paired_pixels

PEAK = 255
WINDOW, DEVIATION = 11, 1.5
LUMINANCE, CONTRAST = (0.01 * PEAK) ** 2, (0.03 * PEAK) ** 2
BORDERS = ("valid", "reflect")


@dataclass(frozen=True)
class SignalToNoise(ImageMean):
    """PSNR in dB: the mean over images of 10 log10(255² / MSE); higher is nearer.

    The range is that of bytes, never taken from the content. The logarithm comes before the mean:
    each image counts once, each frame of a video too. Equal pairs give +inf, and so does a pass
    that holds one. An image that is not finite makes the mean NaN.

    Args:
        reference: where the batch holds the real images.
        name: in the log, after the split's.
        reads: the artifact class.

    Source: held to scikit-image's peak_signal_noise_ratio and to torchmetrics' with
    `dim=(1, 2, 3)`, 1e-6, in tests.
    """

    reference: Reference = Reference()  # noqa: RUF009 (frozen)
    name: str = "psnr"
    reads: type = ImageOrVideo

    def __call__(
        self, artifact: ImageGrid | VideoGrid, batch: Mapping[str, np.ndarray]
    ) -> ImageSum:
        """Return the sum of one batch's PSNRs.

        Raises:
            InputRefused: not as many real images as generated ones, or of other sizes.
        """
        made, real = paired_pixels(self.name, self.reference, artifact, batch)
        errors = map(_squared_error, made.levels, real.levels)
        return image_sum([_decibels(error) for error in errors], made.finite)


@dataclass(frozen=True)
class ErrorSum:
    """Squared error per image, summed, in squared levels; and how many images."""

    squared: float
    images: int


@dataclass(frozen=True)
class PooledSignalToNoise:
    """PSNR in dB of the mean squared error of a whole pass: the logarithm comes after the mean.

    Never above `SignalToNoise`; one good image does not outweigh the others. Arguments, ranges and
    refusals are those of `SignalToNoise`.
    """

    reference: Reference = Reference()  # noqa: RUF009 (frozen)
    name: str = "psnr_pooled"
    reads: type = ImageOrVideo

    def __call__(
        self, artifact: ImageGrid | VideoGrid, batch: Mapping[str, np.ndarray]
    ) -> ErrorSum:
        """Return the sum of one batch's squared errors."""
        made, real = paired_pixels(self.name, self.reference, artifact, batch)
        errors = image_sum(list(map(_squared_error, made.levels, real.levels)), made.finite)
        return ErrorSum(errors.total, errors.images)

    def merge(self, total: ErrorSum, part: ErrorSum) -> ErrorSum:
        """Return both batches' sums."""
        return ErrorSum(total.squared + part.squared, total.images + part.images)

    def finalize(self, total: ErrorSum) -> float:
        """Return the PSNR.

        Raises:
            ValueError: the pass held no image.
        """
        if not total.images:
            raise ValueError(f"{self.name}: no image in this pass. Look at the validation data.")
        return _decibels(total.squared / total.images)


@dataclass(frozen=True)
class StructuralSimilarity(ImageMean):
    """SSIM: the mean over images of the mean over windows and channels, at most 1; 1 is equal.

    Bytes of range 255, a Gaussian window of 11 x 11 with deviation 1.5, variances that divide by
    the window's weight (not by one less), K1 = 0.01 and K2 = 0.03. An image that is not finite
    makes the mean NaN.

    Args:
        border: `valid` takes windows that lie inside the image, as the paper and scikit-image do;
            `reflect` takes one around every pixel of the image mirrored at its edge, as
            torchmetrics 1.9 does.
        reference: where the batch holds the real images.
        name: in the log, after the split's.
        reads: the artifact class; each frame of a video counts once.

    Raises:
        InputRefused: another border.

    Source: Wang et al. 2004, doi:10.1109/TIP.2003.819861; held to scikit-image with
    `gaussian_weights=True, sigma=1.5, use_sample_covariance=False`, and to torchmetrics, 1e-6.
    """

    border: str = "valid"
    reference: Reference = Reference()  # noqa: RUF009 (frozen)
    name: str = "ssim"
    reads: type = ImageOrVideo

    def __post_init__(self) -> None:
        """Refuse a border that has no meaning."""
        if self.border not in BORDERS:
            raise InputRefused(f"border is {self.border!a:.200}; expected one of {BORDERS}")

    def __call__(
        self, artifact: ImageGrid | VideoGrid, batch: Mapping[str, np.ndarray]
    ) -> ImageSum:
        """Return the sum of one batch's SSIMs.

        Raises:
            InputRefused: not as many real images as generated ones, of other sizes, or with a
                side shorter than the window.
        """
        made, real = paired_pixels(self.name, self.reference, artifact, batch)
        if min(made.levels.shape[1:3]) < WINDOW:
            raise InputRefused(
                f"{self.name}: images of {made.levels.shape[1]} x {made.levels.shape[2]}; its "
                f"window needs sides of at least {WINDOW}"
            )
        pairs = zip(made.levels, real.levels, strict=True)
        return image_sum([self._similarity(*pair) for pair in pairs], made.finite)

    def _similarity(self, made: NDArray[np.uint8], real: NDArray[np.uint8]) -> float:
        x, y = made.astype(np.float64), real.astype(np.float64)
        if self.border == "reflect":
            edge = WINDOW // 2
            widths = ((edge, edge), (edge, edge), (0, 0))
            x, y = np.pad(x, widths, "reflect"), np.pad(y, widths, "reflect")
        return similarity(x, y)


def similarity(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return the mean SSIM over the windows inside two images [H, W, C] of range 255."""
    mean_x, mean_y = _blurred(x), _blurred(y)
    variances = _blurred(x * x) + _blurred(y * y) - mean_x**2 - mean_y**2
    covariance = _blurred(x * y) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + LUMINANCE) / (mean_x**2 + mean_y**2 + LUMINANCE)
    return float((luminance * (2 * covariance + CONTRAST) / (variances + CONTRAST)).mean())


def _blurred(image: NDArray[np.float64]) -> NDArray[np.float64]:
    offsets = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-((offsets / DEVIATION) ** 2) / 2)
    weights /= weights.sum()
    rows = _weighted(lambda i: image[i : i + len(image) - WINDOW + 1], weights)
    return _weighted(lambda i: rows[:, i : i + rows.shape[1] - WINDOW + 1], weights)


def _weighted(
    shifted: Callable[[int], NDArray[np.float64]], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    total = weights[0] * shifted(0)
    for index in range(1, len(weights)):
        total += weights[index] * shifted(index)
    return total


def _squared_error(made: NDArray[np.uint8], real: NDArray[np.uint8]) -> float:
    return float(np.square(made.astype(np.float64) - real).mean())


def _decibels(squared_error: float) -> float:
    if squared_error == 0:
        return math.inf
    return 10 * math.log10(PEAK**2 / squared_error)
