"""The inception score: how sure a classifier is of each image, and how many classes there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dew.artifacts import ImageGrid, VideoGrid
from dew.errors import InputRefused
from dew.evaluation.feature_rows import FeatureRows, feature_rows
from dew.evaluation.frechet import Encoder, encoded
from dew.evaluation.pixels import ImageOrVideo, generated_pixels

SEED = 2020
"""The seed of torch-fidelity, whose order is followed."""


@dataclass(frozen=True)
class InceptionScore:
    """The mean over parts of exp(mean KL(p(class | image) ‖ p(class))); higher is better.

    It looks at generated images only, and runs from 1 to the number of classes. Images are put in
    a random order and cut into parts, each of which has a p(class) of its own; fewer images than
    some thousands a part give lower scores. Every image's class scores are kept: 4 KB an image.

    Images are scored as the bytes a PNG of them would hold. An image with a pixel that is not
    finite makes the score NaN.

    Args:
        encoder: bytes [N, H, W, 3] to class scores [N, classes] before the softmax: an
            `InceptionEncoder` of 1008 features, in mode `torch-fidelity` for its numbers.
        splits: how many parts.
        seed: of the order; None keeps the images as they came.
        name: in the log, after the split's.
        reads: the artifact class; a video's frames count as images.

    Source: Salimans et al. 2016, arXiv:1606.03498; held to torch-fidelity 0.4.0 by 1e-5 relative
    in tests, with images in the same order.
    """

    encoder: Encoder | None = field(default=None, repr=False)
    splits: int = 10
    seed: int | None = SEED
    name: str = "inception_score"
    reads: type = ImageOrVideo

    def __call__(
        self, artifact: ImageGrid | VideoGrid, batch: Mapping[str, np.ndarray]
    ) -> FeatureRows:
        """Return the class scores of one batch; the batch itself is not read.

        Raises:
            InputRefused: no encoder, or images that are not of one or three channels.
        """
        pixels = generated_pixels(artifact)
        return feature_rows(encoded(self.encoder, self.name, pixels, features=1008))

    def merge(self, total: FeatureRows, part: FeatureRows) -> FeatureRows:
        """Return the class scores of both batches."""
        return total + part

    def finalize(self, total: FeatureRows) -> float:
        """Return the score; NaN where an image was not finite.

        Raises:
            ValueError: fewer images than parts.
        """
        if len(total) < self.splits:
            raise ValueError(
                f"{self.name}: {len(total)} images for {self.splits} parts; it needs at least one "
                "for each. Evaluate on more, or give fewer splits and name them beside the score."
            )
        return inception_score(total.array(), splits=self.splits, seed=self.seed)[0]


def inception_score(
    scores: NDArray[np.float64], *, splits: int = 10, seed: int | None = SEED
) -> tuple[float, float]:
    """Return mean and deviation over parts of exp(mean KL(p(class | image) ‖ p(class))).

    Args:
        scores: [N, classes], before the softmax.
        splits: how many parts of equal length, at most N.
        seed: of the permutation of NumPy's `RandomState`; None keeps the order.

    Returns:
        The mean and the standard deviation; NaN where a score was not finite.

    Raises:
        InputRefused: a number of parts that cannot be.
    """
    count = len(scores)
    if not 1 <= splits <= count:
        raise InputRefused(f"{splits} parts of {count} images; expected 1 to {count}")
    if not np.isfinite(scores).all():
        return math.nan, math.nan
    if seed is not None:
        order = np.random.RandomState(seed).permutation(count)
        scores = scores[order]
    shifted = scores - scores.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    cuts = [count * part // splits for part in range(splits + 1)]
    parts = [_part(logs[start:stop]) for start, stop in pairwise(cuts)]
    return float(np.mean(parts)), float(np.std(parts))


def _part(logs: NDArray[np.float64]) -> float:
    """Return exp of the mean divergence from the part's own p(class), of log p [n, classes]."""
    shares = np.exp(logs)
    with np.errstate(divide="ignore"):  # a class of share 0 adds nothing
        apart = np.where(shares > 0, logs - np.log(shares.mean(0)), 0.0)
    divergences = (shares * apart).sum(1)
    return math.exp(divergences.mean())
