"""FID: how far apart two populations of images are, through the features of Inception."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dew.artifacts import ImageGrid, VideoGrid
from dew.errors import InputRefused
from dew.evaluation.moments import Gaussian, Moments, merged, moments
from dew.evaluation.pixels import (
    ImageOrVideo,
    Pixels,
    Reference,
    generated_pixels,
    reference_pixels,
    rgb,
)

Encoder = Callable[[NDArray[np.uint8]], NDArray[np.floating]]
"""Bytes [N, H, W, 3] to features [N, D]."""


@dataclass(frozen=True)
class TwoPopulations:
    """The moments of the generated and of the real images so far."""

    generated: Moments
    real: Moments


@dataclass(frozen=True)
class FrechetDistance:
    """The Fréchet distance between Gaussians fitted to features of two populations; 0 is equal.

    Both populations pool over the whole pass and need not be of one size, at least two images
    each. The value depends on their sizes: with few images it is far larger than with the usual
    50,000, and is to be compared at equal counts only. Memory is O(D²), however many batches.

    Images are scored as the bytes a PNG of them would hold. An image with a pixel that is not
    finite makes the distance NaN.

    Args:
        encoder: bytes [N, H, W, 3] to features [N, D]. FID is an `InceptionEncoder` with the
            published weights, `bridges.encoders.inception.load_inception(path)`; its `mode` says
            whose FID: pytorch-fid's, clean-fid's, torch-fidelity's or torchmetrics'.
        reference: where the batch holds the real images.
        name: in the log, after the split's.
        reads: the artifact class; a video's frames count as images.

    Source: Heusel et al. 2017, arXiv:1706.08500. Features are within 1e-4 and the distance within
    1e-5 relative of pytorch-fid 0.3.0 on equal weights, seeded and trained (tests).
    """

    encoder: Encoder | None = field(default=None, repr=False)
    reference: Reference = Reference()  # noqa: RUF009 (frozen)
    name: str = "fid"
    reads: type = ImageOrVideo

    def __call__(
        self, artifact: ImageGrid | VideoGrid, batch: Mapping[str, np.ndarray]
    ) -> TwoPopulations:
        """Return the moments of one batch.

        Args:
            artifact: what was generated, [-1, 1].
            batch: its field named by `reference` holds real images: uint8, or floats in its range.
                Their number and size may differ from the generated ones'.

        Raises:
            InputRefused: no encoder, no such field, or values outside its range.
        """
        generated = generated_pixels(artifact)
        real = reference_pixels(self.reference, artifact, batch)
        return TwoPopulations(self._moments(generated), self._moments(real))

    def merge(self, total: TwoPopulations, part: TwoPopulations) -> TwoPopulations:
        """Return the moments of both batches; `total`'s arrays are added to in place."""
        return TwoPopulations(
            merged(total.generated, part.generated), merged(total.real, part.real)
        )

    def finalize(self, total: TwoPopulations) -> float:
        """Return the distance; NaN where an image was not finite.

        Raises:
            ValueError: fewer than two generated or real images.
        """
        counts = total.generated.count, total.real.count
        if min(counts) < 2:
            raise ValueError(
                f"{self.name}: {counts[0]} generated and {counts[1]} real images; it needs at "
                "least two of each. Evaluate on more batches."
            )
        features = len(total.real.mean)
        if min(counts) <= features:
            warnings.warn(
                f"{self.name}: {counts[0]} generated and {counts[1]} real images for {features} "
                "features. The distance is far above that of many images; compare it at equal "
                "counts only.",
                stacklevel=2,
            )
        return frechet_distance(total.real, total.generated)

    def _moments(self, pixels: Pixels) -> Moments:
        return moments(encoded(self.encoder, self.name, pixels))


def encoded(
    encoder: Encoder | None, name: str, pixels: Pixels, *, features: int = 2048
) -> NDArray[np.floating]:
    """Return an encoder's features [N, D] of images, NaN for those that were not finite.

    Args:
        encoder: bytes [N, H, W, 3] to features [N, D].
        name: of the metric, for the message.
        pixels: the images; there may be none.
        features: what the message asks an encoder for.

    Raises:
        InputRefused: no encoder, or images of neither one channel nor three.
    """
    if encoder is None:
        asked = "" if features == 2048 else f", features={features}"
        raise InputRefused(
            f"{name}: no encoder. Give one with weights: metrics.{name}(encoder="
            f"bridges.encoders.inception.load_inception(PATH{asked})), where PATH holds "
            "pytorch-fid's pt_inception-2015-12-05-6726825d.pth or the same as safetensors."
        )
    levels = rgb(name, pixels)
    if not len(levels):
        return np.zeros((0, 1))
    return np.where(pixels.finite[:, None], np.asarray(encoder(levels)), np.nan)


def frechet_distance(real: Moments, generated: Moments) -> float:
    """Return the Fréchet distance of the normal distributions fitted to two populations.

    Args:
        real: moments of at least two rows.
        generated: the same, with as many features.

    Returns:
        The squared distance; NaN where a feature was not finite.

    Raises:
        InputRefused: unlike numbers of features.
        ValueError: fewer than two rows.
    """
    _check_alike(real.mean, generated.mean)
    return gaussian_distance(real.gaussian(), generated.gaussian())


def gaussian_distance(real: Gaussian, generated: Gaussian) -> float:
    """Return |m₁ - m₂|² + tr(C₁ + C₂ - 2 (C₁ C₂)^½), at least 0.

    The trace of the root is the sum of the singular values of A₁ᵀ A₂, where C = A Aᵀ by the
    eigenvectors of C: the square roots of the eigenvalues of C₁^½ C₂ C₁^½, without rounding them
    before the root is taken. N rows fix min(D, N - 1) eigenvalues; the others are zero and are
    left out, so that few rows cost no digits, and nothing complex can arise.

    Args:
        real: a normal distribution of D features.
        generated: another.

    Returns:
        The squared distance; NaN where a feature was not finite.

    Raises:
        InputRefused: unlike numbers of features.
    """
    _check_alike(real.mean, generated.mean)
    shift = real.mean - generated.mean
    sides = real, generated
    if not all(np.isfinite(part).all() for part in (shift, *(side.covariance for side in sides))):
        return math.nan
    left, right = (_factor(side.covariance, side.rank) for side in sides)
    root = np.linalg.svd(left.T @ right, compute_uv=False).sum()
    spread = float((left**2).sum() + (right**2).sum())
    return max(float(shift @ shift) + spread - 2 * float(root), 0.0)


def _check_alike(real: NDArray[np.float64], generated: NDArray[np.float64]) -> None:
    if real.shape != generated.shape:
        raise InputRefused(
            f"features of {len(real)} and {len(generated)}; expected one encoder for both"
        )


def _factor(covariance: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
    """Return A [D, R] with A Aᵀ = covariance, R at most `rank`."""
    values, vectors = np.linalg.eigh(covariance)
    kept = slice(max(len(values) - rank, 0), None)
    return vectors[:, kept] * np.sqrt(np.maximum(values[kept], 0))
