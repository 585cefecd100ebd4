"""What image metrics look at: the bytes of generated images, and the references beside them."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dew.artifacts import ImageGrid, VideoGrid, uint8_pixels
from dew.errors import InputRefused

SLACK = 1e-6
"""How far past its range a reference may lie: what a change of range leaves in float32."""


class ImageOrVideo(ABC):  # noqa: B024 (classes are registered with it)
    """An `ImageGrid`, or a `VideoGrid` whose frames count as images."""


ImageOrVideo.register(ImageGrid)
ImageOrVideo.register(VideoGrid)


class Pixels(NamedTuple):
    """Images as bytes, and which of them were finite.

    Attributes:
        levels: uint8 [N, H, W, C].
        finite: bool [N]; of an image that was not, the bytes mean nothing and its score is NaN.
    """

    levels: NDArray[np.uint8]
    finite: NDArray[np.bool_]


@dataclass(frozen=True)
class Reference:
    """Where a batch holds the real images.

    Args:
        field: its key; None means `image` beside an `ImageGrid`, `video` beside a `VideoGrid`.
        low: what black is, where the field holds floats; uint8 needs no range.
        high: what white is.
    """

    field: str | None = None
    low: float = -1.0
    high: float = 1.0


def generated_pixels(artifact: ImageGrid | VideoGrid) -> Pixels:
    """Return what was generated as `uint8_pixels` gives it, frames in a row.

    So a metric scores the picture that a tracker shows: rounded, and clipped to the range.

    Raises:
        InputRefused: not floats of [N, H, W, C] or [N, T, H, W, C].
    """
    video = isinstance(artifact, VideoGrid)
    values = np.asarray(artifact.videos if video else artifact.images)
    if not np.issubdtype(values.dtype, np.floating) and values.dtype.name != "bfloat16":
        raise InputRefused(
            f"{type(artifact).__name__} holds {values.dtype}; expected floats in [-1, 1]. "
            "For bytes x give x / 127.5 - 1."
        )
    return _frames(values, uint8_pixels(values), type(artifact).__name__, 5 if video else 4)


def reference_pixels(
    reference: Reference, artifact: ImageGrid | VideoGrid, batch: Mapping[str, np.ndarray]
) -> Pixels:
    """Return a batch's real images as bytes, frames in a row; all of them are finite.

    Raises:
        InputRefused: no such field, one of another rank, values that are not finite or lie
            outside the range of the reference.
    """
    video = isinstance(artifact, VideoGrid)
    field = reference.field or ("video" if video else "image")
    if field not in batch:
        raise InputRefused(
            f"the batch has no field {field!r} to compare with; it holds "
            f"{', '.join(sorted(batch)) or 'nothing'}. Name the field of the real images: "
            'reference=Reference("...").'
        )
    values = np.asarray(batch[field])
    where = f"batch[{field!r}]"
    if values.dtype != np.uint8:
        _check_range(values, reference, where)
        span = np.float32(reference.high - reference.low)
        scaled = (values.astype(np.float32) - np.float32(reference.low)) / span
        levels = uint8_pixels(scaled * 2 - 1)
    else:
        levels = values
    return _frames(values, levels, where, 5 if video else 4)


def paired_pixels(
    name: str, reference: Reference, artifact: ImageGrid | VideoGrid, batch: Mapping
) -> tuple[Pixels, Pixels]:
    """Return generated and real images of one shape, one beside the other.

    Raises:
        InputRefused: not as many of one as of the other, or of other sizes.
    """
    generated = generated_pixels(artifact)
    real = reference_pixels(reference, artifact, batch)
    if generated.levels.shape != real.levels.shape:
        raise InputRefused(
            f"{name}: {generated.levels.shape} generated images and {real.levels.shape} real ones. "
            "It compares pairs: as many, and of the same height, width and channels."
        )
    return generated, real


def rgb(name: str, pixels: Pixels) -> NDArray[np.uint8]:
    """Return bytes [N, H, W, 3], grey repeated over the three channels.

    Raises:
        InputRefused: neither one channel nor three.
    """
    channels = pixels.levels.shape[-1]
    if channels not in (1, 3):
        raise InputRefused(f"{name}: images have {channels} channels; expected 1 (grey) or 3 (RGB)")
    return np.broadcast_to(pixels.levels, (*pixels.levels.shape[:-1], 3))


def _frames(values: np.ndarray, levels: np.ndarray, where: str, rank: int) -> Pixels:
    if values.ndim != rank:
        axes = "[N, T, H, W, C]" if rank == 5 else "[N, H, W, C]"
        raise InputRefused(f"{where} has shape {values.shape}; expected {axes}")
    rows = levels.reshape(math.prod(levels.shape[:-3]), *levels.shape[-3:])
    if values.dtype == np.uint8:
        return Pixels(rows, np.ones(len(rows), bool))
    finite = np.isfinite(values.astype(np.float32)).reshape(rows.shape)
    return Pixels(rows, np.asarray(finite.all((1, 2, 3))))


def _check_range(values: np.ndarray, reference: Reference, where: str) -> None:
    low, high = reference.low, reference.high
    if not np.issubdtype(values.dtype, np.floating) and values.dtype.name != "bfloat16":
        raise InputRefused(f"{where} holds {values.dtype}; expected uint8, or floats in a range")
    wide = values.astype(np.float32)
    broken = np.count_nonzero(~np.isfinite(wide))
    if broken:
        raise InputRefused(
            f"{where}: {broken} of {wide.size} values are not finite; expected real images"
        )
    outside = np.count_nonzero((wide < low - SLACK) | (wide > high + SLACK))
    if outside:
        raise InputRefused(
            f"{where}: {outside} of {wide.size} values lie outside [{low:g}, {high:g}] (found "
            f"{wide.min():g} to {wide.max():g}). Give the range that the data has: "
            "reference=Reference(low=..., high=...), or uint8."
        )
