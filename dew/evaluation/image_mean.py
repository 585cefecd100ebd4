"""The mean of one number an image: the state that paired image metrics share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class ImageSum:
    """The sum of a score over images, float64, and how many there were."""

    total: float
    images: int


class ImageMean:
    """`merge` and `finalize` of a metric that scores each image by itself.

    A score that is NaN or infinite stays in the sum, and so shows in the mean.
    """

    name: str

    def merge(self, total: ImageSum, part: ImageSum) -> ImageSum:
        """Return both batches' sums."""
        return ImageSum(total.total + part.total, total.images + part.images)

    def finalize(self, total: ImageSum) -> float:
        """Return the mean over images.

        Raises:
            ValueError: the pass held no image.
        """
        if not total.images:
            raise ValueError(f"{self.name}: no image in this pass. Look at the validation data.")
        return total.total / total.images


def image_sum(scores: ArrayLike, finite: np.ndarray) -> ImageSum:
    """Return the sum of a batch's scores, NaN for an image that was not finite.

    Args:
        scores: [N], one number an image.
        finite: bool [N].
    """
    counted = np.where(finite, np.asarray(scores, np.float64), np.nan)
    return ImageSum(float(counted.sum()), len(counted))
