"""KID: how far apart two populations of images are, by a kernel on the features of Inception."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dew.artifacts import ImageGrid, VideoGrid
from dew.errors import InputRefused
from dew.evaluation.feature_rows import FeatureRows, feature_rows
from dew.evaluation.frechet import Encoder, encoded
from dew.evaluation.pixels import ImageOrVideo, Reference, generated_pixels, reference_pixels

DEGREE = 3
SEED = 2020
"""The seed of torch-fidelity, whose draws are followed."""


@dataclass(frozen=True)
class TwoSides:
    """The features of the generated and of the real images so far."""

    generated: FeatureRows
    real: FeatureRows


@dataclass(frozen=True)
class KernelDistance:
    """The squared maximum mean discrepancy of two populations' features; 0 is equal.

    It is the mean over random subsets of an unbiased estimate, and so may fall below 0. Unlike
    FID's, its expected value does not depend on how many images there are. Every image's features
    are kept, 4 D bytes.

    Images are scored as the bytes a PNG of them would hold. An image with a pixel that is not
    finite makes the distance NaN.

    Args:
        encoder: bytes [N, H, W, 3] to features [N, D]; published values are of an
            `InceptionEncoder` with the published weights and mode `torch-fidelity`.
        subsets: how many subsets are drawn.
        subset_size: images of each side in a subset.
        seed: of the draws.
        reference: where the batch holds the real images.
        name: in the log, after the split's.
        reads: the artifact class; a video's frames count as images.

    Source: Binkowski et al. 2018, arXiv:1801.01401; held to torch-fidelity 0.4.0 by 1e-5 relative
    in tests, with images in the same order.
    """

    encoder: Encoder | None = field(default=None, repr=False)
    subsets: int = 100
    subset_size: int = 1000
    seed: int = SEED
    reference: Reference = Reference()  # noqa: RUF009 (frozen)
    name: str = "kid"
    reads: type = ImageOrVideo

    def __call__(
        self, artifact: ImageGrid | VideoGrid, batch: Mapping[str, np.ndarray]
    ) -> TwoSides:
        """Return the features of one batch; the arguments are those of `FrechetDistance`.

        Raises:
            InputRefused: no encoder, no such field, or values outside its range.
        """
        sides = generated_pixels(artifact), reference_pixels(self.reference, artifact, batch)
        return TwoSides(
            *(feature_rows(encoded(self.encoder, self.name, pixels)) for pixels in sides)
        )

    def merge(self, total: TwoSides, part: TwoSides) -> TwoSides:
        """Return the features of both batches."""
        return TwoSides(total.generated + part.generated, total.real + part.real)

    def finalize(self, total: TwoSides) -> float:
        """Return the distance; NaN where an image was not finite.

        Raises:
            ValueError: fewer images on a side than a subset takes.
        """
        counts = len(total.generated), len(total.real)
        if min(counts) < self.subset_size:
            raise ValueError(
                f"{self.name}: {counts[0]} generated and {counts[1]} real images; a subset takes "
                f"{self.subset_size} of each. Evaluate on more, or give a smaller subset_size, at "
                "least 2, and name it beside the score."
            )
        return kernel_distance(
            total.generated.array(),
            total.real.array(),
            subsets=self.subsets,
            subset_size=self.subset_size,
            seed=self.seed,
        )[0]


def kernel_distance(
    generated: NDArray[np.float64],
    real: NDArray[np.float64],
    *,
    subsets: int = 100,
    subset_size: int = 1000,
    seed: int = SEED,
) -> tuple[float, float]:
    """Return mean and deviation over subsets of the squared discrepancy.

    The kernel is (x·y / D + 1)³. Pairs of a row with itself are left out on both sides, and so
    the estimate is unbiased.

    Args:
        generated: [N, D].
        real: [M, D].
        subsets: how many are drawn.
        subset_size: rows of each side in a subset, from 2 to the smaller of N and M.
        seed: of NumPy's `RandomState`, which draws a subset of each side in turn.

    Returns:
        The mean and the standard deviation; NaN where a feature was not finite.

    Raises:
        InputRefused: unlike numbers of features, or a subset of a size that cannot be.
    """
    if generated.shape[1] != real.shape[1]:
        raise InputRefused(
            f"features of {real.shape[1]} and {generated.shape[1]}; expected one encoder for both"
        )
    if not 2 <= subset_size <= min(len(generated), len(real)) or subsets < 1:
        raise InputRefused(
            f"{subsets} subsets of {subset_size} from {len(generated)} and {len(real)} rows; "
            "expected at least one subset, of 2 rows to as many as the shorter side has"
        )
    if not (np.isfinite(generated).all() and np.isfinite(real).all()):
        return math.nan, math.nan
    draws = np.random.RandomState(seed)
    found = []
    for _ in range(subsets):
        first = generated[draws.choice(len(generated), subset_size, replace=False)]
        second = real[draws.choice(len(real), subset_size, replace=False)]
        found.append(_discrepancy(first, second))
    return float(np.mean(found)), float(np.std(found))


def _discrepancy(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    size = len(first)
    within = sum(_off_diagonal(_kernel(rows, rows)) for rows in (first, second))
    return within / (size * (size - 1)) - 2 * float(_kernel(first, second).mean())


def _kernel(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    return (first @ second.T / first.shape[1] + 1) ** DEGREE


def _off_diagonal(kernel: NDArray[np.float64]) -> float:
    return float(kernel.sum() - np.trace(kernel))
