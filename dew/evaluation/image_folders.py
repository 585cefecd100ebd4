"""FID of two folders of image files, of whatever sizes, in bounded memory."""

from __future__ import annotations

import os

import numpy as np

from dew.data.images import image_files, read_image
from dew.evaluation.frechet import Encoder, frechet_distance
from dew.evaluation.moments import Moments, merged, moments

AT_ONCE = 32


def folder_distance(
    generated: str | os.PathLike[str], real: str | os.PathLike[str], encoder: Encoder
) -> float:
    """Return the Fréchet distance of the images of two folders.

    Args:
        generated: a folder of image files; folders inside it are not looked into.
        real: the same.
        encoder: bytes [N, H, W, 3] to features [N, D], such as an `InceptionEncoder`.

    Raises:
        InputRefused: a folder without images, or a file that cannot be read.
        ValueError: fewer than two images in a folder.
    """
    made, wanted = folder_moments(generated, encoder), folder_moments(real, encoder)
    return frechet_distance(wanted, made)


def folder_moments(folder: str | os.PathLike[str], encoder: Encoder) -> Moments:
    """Return the moments of the features of all images right inside a folder.

    Images of one size that follow each other are encoded together; each is resized by itself, so
    the value does not depend on which lie side by side.

    Raises:
        InputRefused: no image, or a file that cannot be read.
    """
    total, waiting = None, []
    for path in image_files(folder):
        levels = read_image(path)
        if waiting and (len(waiting) == AT_ONCE or waiting[0].shape != levels.shape):
            total, waiting = _added(total, waiting, encoder), []
        waiting.append(levels)
    return _added(total, waiting, encoder)


def _added(total: Moments | None, images: list[np.ndarray], encoder: Encoder) -> Moments:
    part = moments(encoder(np.stack(images)))
    return part if total is None else merged(total, part)
