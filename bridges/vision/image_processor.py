"""Image files, Pillow's images and arrays as the pixels that a vision model reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridges.vision.image_settings import ImageSettings, Size
from dew.data.images import PIXEL_LIMIT, read_image
from dew.errors import InputRefused, shown

LONGEST_SIDE = 50_000


@dataclass(frozen=True)
class ImageProcessor:
    """A checkpoint's preparation of images.

    Attributes:
        settings: its steps.
        files: the files that an export writes, by name.
    """

    settings: ImageSettings
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def __call__(self, images: Any, **ignored: Any) -> dict[str, NDArray[np.float32]]:
        """Return what the model's call takes of images.

        Args:
            images: one image or a sequence of them, each a path, a Pillow image, or uint8 levels
                [H, W, 3] or [H, W]. A file is read by `dew.data.images.read_image`: turned as its
                EXIF says, transparency dropped. A Pillow image is taken as it lies, transparency
                laid over white. An array [N, H, W, 3] is N images.

        Returns:
            `pixel_values`, float32 [N, 3, H, W].

        Raises:
            InputRefused: no such image, one too large before or after the resize, or images that
                come out in different sizes.

        Source: the Pillow processors of transformers 5.24 (image_processing_backends.PilBackend),
            which it equals bit for bit.
        """
        if ignored:
            raise InputRefused(
                f"unknown arguments {', '.join(map(shown, ignored))}; an image processor takes "
                "images alone, and its settings are the checkpoint's"
            )
        several = isinstance(images, Sequence) and not isinstance(images, str | bytes)
        several = several or (isinstance(images, np.ndarray) and images.ndim == 4)
        pixels = [self._pixels(image) for image in (images if several else [images])]
        if not pixels:
            raise InputRefused("no images; expected at least one")
        sizes = {array.shape[1:] for array in pixels}
        if len(sizes) > 1:
            raise InputRefused(
                f"the images come out in {len(sizes)} sizes ({shown(sorted(sizes))}), as the "
                "checkpoint neither crops nor warps them. Give them one at a time"
            )
        return {"pixel_values": np.stack(pixels)}

    def _pixels(self, image: Any) -> NDArray[np.float32]:
        """Return one image, float32 [3, H, W]."""
        settings, levels = self.settings, _levels(image)
        if settings.size is not None:
            levels = _resized(levels, settings.size, settings.resample)
        if settings.crop is not None:
            levels = _cropped(levels, *settings.crop)
        values = levels
        if settings.scale is not None:
            # In float64 and then rounded, as the reference does.
            values = (levels.astype(np.float64) * settings.scale).astype(np.float32)
        values = values.astype(np.float32)
        if settings.mean is not None:
            mean = np.array(settings.mean, np.float32)
            values = (values - mean) / np.array(settings.deviation, np.float32)
        return np.ascontiguousarray(values.transpose(2, 0, 1))


def _levels(image: Any) -> NDArray[np.uint8]:
    """Return the levels [H, W, 3] of an image of any kind."""
    if isinstance(image, str | os.PathLike):
        return read_image(image)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or 0 in image.shape:
            raise InputRefused(
                f"an array {image.dtype} {list(image.shape)}; expected uint8 levels [H, W, 3] or "
                "[H, W], from 0 to 255"
            )
        if image.ndim == 2:
            return np.repeat(image[..., None], 3, axis=2)
        if image.shape[2] != 3:
            raise InputRefused(
                f"an array of {image.shape[2]} channels {list(image.shape)}; expected [H, W, 3]"
            )
        return image
    from PIL import Image

    if not isinstance(image, Image.Image):
        raise InputRefused(
            f"an image of type {type(image).__name__}; expected a path, a Pillow image, or uint8 "
            "levels [H, W, 3]"
        )
    width, height = image.size
    if not 0 < width * height <= PIXEL_LIMIT:
        raise InputRefused(
            f"an image of {width} x {height} is {width * height} pixels; expected 1 to "
            f"{PIXEL_LIMIT}"
        )
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return np.array(image.convert("RGB"))


def _resized(levels: NDArray[np.uint8], size: Size, resample: str) -> NDArray[np.uint8]:
    """Return levels of the size that `size` asks for, by Pillow's filter of that name."""
    from PIL import Image

    height, width = _target(levels.shape[0], levels.shape[1], size)
    if not 0 < min(height, width) <= max(height, width) <= LONGEST_SIDE:
        raise InputRefused(
            f"an image of {levels.shape[1]} x {levels.shape[0]} would be resized to "
            f"{width} x {height}; expected sides from 1 to {LONGEST_SIDE}. Crop it first"
        )
    image = Image.fromarray(np.ascontiguousarray(levels))
    return np.array(image.resize((width, height), Image.Resampling[resample.upper()]))


def _target(height: int, width: int, size: Size) -> tuple[int, int]:
    """Return height and width after the resize.

    Source: transformers 5.24, image_transforms.get_resize_output_image_size and, with
        longest_edge, get_size_with_aspect_ratio.
    """
    if size.height is not None and size.width is not None:
        return size.height, size.width
    edge = size.shortest_edge or 0
    short, long = sorted((height, width))
    if size.longest_edge is None:
        new = edge, int(edge * long / short)
    else:
        exact = float(edge)
        if long / short * edge > size.longest_edge:
            exact = size.longest_edge * short / long
            edge = round(exact)
        new = (short, long) if short == edge else (edge, int(exact * long / short))
    return new if height <= width else (new[1], new[0])


def _cropped(levels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Return the middle of an image, black where the image does not reach.

    Source: transformers 5.24, image_transforms.center_crop.
    """
    for axis, side in enumerate((height, width)):
        there = levels.shape[axis]
        if side > there:
            before = -(-(side - there) // 2)
            padding = [(0, 0)] * 3
            padding[axis] = (before, side - there - before)
            levels = np.pad(levels, padding)
        else:
            start = (there - side) // 2
            levels = levels.take(np.arange(start, start + side), axis=axis)
    return levels
