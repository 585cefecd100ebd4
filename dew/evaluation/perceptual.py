"""LPIPS: how unlike two images look, through the features of a trained network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dew.artifacts import ImageGrid, VideoGrid
from dew.errors import InputRefused
from dew.evaluation.image_mean import ImageMean, ImageSum, image_sum
from dew.evaluation.pixels import ImageOrVideo, Reference, paired_pixels, rgb
from dew.nn.perceptual_trunks import PerceptualNetwork


@dataclass(frozen=True)
class PerceptualDistance(ImageMean):
    """The mean over images of their LPIPS distance to the real one; 0 is equal, lower is nearer.

    Images enter the network in [-1, 1], as the bytes a PNG of them would hold. An image that is
    not finite makes the mean NaN.

    Args:
        network: `bridges.encoders.perceptual.load_perceptual(net, trunk)`; values compare only
            between equal networks.
        reference: where the batch holds the real images.
        name: in the log, after the split's.
        reads: the artifact class; each frame of a video counts once.

    Source: Zhang et al. 2018, arXiv:1801.03924 (version 0.1); held to torchmetrics 1.9 by 1e-5 on
    seeded trunks in tests.
    """

    network: PerceptualNetwork | None = field(default=None, repr=False)
    reference: Reference = Reference()  # noqa: RUF009 (frozen)
    name: str = "lpips"
    reads: type = ImageOrVideo

    def __call__(
        self, artifact: ImageGrid | VideoGrid, batch: Mapping[str, np.ndarray]
    ) -> ImageSum:
        """Return the sum of one batch's distances.

        Raises:
            InputRefused: no network, not as many real images as generated ones, images of other
                sizes, or too small for the network.
        """
        if self.network is None:
            raise InputRefused(
                f"{self.name}: no network. Give one with weights: metrics.lpips(network="
                'bridges.encoders.perceptual.load_perceptual("alex", TRUNK)), where TRUNK holds '
                "torchvision's AlexNet."
            )
        made, real = paired_pixels(self.name, self.reference, artifact, batch)
        if not len(made.levels):
            return image_sum([], made.finite)
        return image_sum(self.network(rgb(self.name, made), rgb(self.name, real)), made.finite)
