"""CLIP score: how well images fit the captions they were made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dew.artifacts import ImageGrid
from dew.errors import InputRefused
from dew.evaluation.image_mean import ImageMean, ImageSum, image_sum
from dew.evaluation.pixels import generated_pixels, rgb
from dew.nn.clip import ClipEncoder


@dataclass(frozen=True)
class ClipScore(ImageMean):
    """The mean over pairs of scale * max(cosine(image, caption), 0); higher fits better.

    With the scale of 100 scores run from 0 to 100, as torchmetrics gives them; the paper's own run
    to 2.5 (`ClipScore.as_published`). Each pair is cut off at 0 by itself, before the mean. An
    image that is not finite makes the mean NaN.

    Args:
        encoder: `bridges.encoders.clip.load_clip(folder)`; values compare only between equal
            weights.
        captions: the batch's field of captions, read where the artifact has none of its own:
            texts [N], or rows of CLIP's token ids [N, L] that begin with the start token.
        scale: what the cosine is multiplied by.
        prefix: put before each caption that is a text.
        name: in the log, after the split's.
        reads: the artifact class.

    Source: Hessel et al. 2021, arXiv:2104.08718; held to torchmetrics 1.9 by 1e-4 in tests.
    """

    encoder: ClipEncoder | None = field(default=None, repr=False)
    captions: str = "text"
    scale: float = 100.0
    prefix: str = ""
    name: str = "clip"
    reads: type = ImageGrid

    @classmethod
    def as_published(cls, encoder: ClipEncoder, captions: str = "text") -> ClipScore:
        """Return the score of the paper: 2.5 max(cosine, 0), captions after "A photo depicts"."""
        return cls(encoder, captions, 2.5, "A photo depicts ", name="clip_2.5")

    def __call__(self, artifact: ImageGrid, batch: Mapping[str, np.ndarray]) -> ImageSum:
        """Return the sum of one batch's scores.

        Args:
            artifact: images [N, H, W, C] in [-1, 1], with or without captions.
            batch: holds the captions where the artifact does not.

        Raises:
            InputRefused: no encoder, no captions, or not one for every image.
        """
        if self.encoder is None:
            raise InputRefused(
                f"{self.name}: no encoder. Give one with weights: metrics.clip(encoder="
                "bridges.encoders.clip.load_clip(FOLDER)), where FOLDER holds a CLIPModel."
            )
        made, captions = generated_pixels(artifact), self._captions(artifact, batch)
        if len(made.levels) != len(captions):
            raise InputRefused(
                f"{self.name}: {len(made.levels)} images and {len(captions)} captions; expected a "
                "caption for every image"
            )
        if not len(captions):
            return image_sum([], made.finite)
        images = _directions(self.encoder.encode_images(rgb(self.name, made)))
        if isinstance(captions[0], str):
            texts = self.encoder.encode_texts([self.prefix + caption for caption in captions])
        else:
            texts = self.encoder.encode_tokens(captions)
        cosines = (images * _directions(texts)).sum(1)
        return image_sum(self.scale * np.maximum(cosines, 0), made.finite)

    def _captions(self, artifact: ImageGrid, batch: Mapping[str, np.ndarray]) -> list:
        if artifact.captions:
            return list(artifact.captions)
        if self.captions not in batch:
            raise InputRefused(
                f"{self.name}: neither the artifact nor the batch has captions. The batch holds "
                f'{", ".join(sorted(batch)) or "nothing"}; name the field: captions="...".'
            )
        rows = np.asarray(batch[self.captions])
        ids = np.issubdtype(rows.dtype, np.integer) and rows.ndim == 2
        texts = rows.ndim == 1 and all(isinstance(row, str) for row in rows.tolist())
        if not (ids or texts):
            raise InputRefused(
                f"{self.name}: batch[{self.captions!r}] is {rows.dtype} of shape {rows.shape}; "
                "expected texts [N] or token ids [N, L]"
            )
        return rows.tolist()


def _directions(vectors: np.ndarray) -> np.ndarray:
    wide = vectors.astype(np.float64)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)
