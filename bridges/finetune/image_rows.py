"""Rows of images that are decoded for the batch they are in, and cropped at random where asked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bridges.finetune.media import Cell, levels_of, values_of
from bridges.vision.image_processor import ImageProcessor
from bridges.vision.image_settings import Size
from dew.data.rows import check_indices
from dew.errors import InputRefused

AREAS, RATIOS, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
"""Of a random crop: its share of the image, its proportions, and how often one is drawn."""


@dataclass(frozen=True, eq=False)
class ImageRows:
    """What a classifier of images trains on; see `dew.data.Rows`.

    Args:
        images: where they are.
        labels: int32 [N].
        digests: a hash of each image's file.
        processor: the checkpoint's.
        varied: whether training draws a crop and a mirroring of each image anew.
        seed: of these draws.
    """

    images: Sequence[Cell]
    labels: np.ndarray
    digests: Sequence[str]
    processor: ImageProcessor
    varied: bool = False
    seed: int = 0

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self.images)

    @property
    def lengths(self) -> np.ndarray:
        """One image a row, int64 [N]."""
        return np.ones(len(self), np.int64)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the files and labels, in hexadecimal."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256("".join(self.digests).encode())
        digest.update(repr((self.processor.settings, self.varied)).encode())
        digest.update(np.ascontiguousarray(self.labels, "<i4").data)
        return digest.hexdigest()

    def width(self, indices: np.ndarray) -> int:
        """Return 1: images have one size."""
        del indices
        return 1

    def take(self, indices: np.ndarray, width: int = 1) -> dict[str, np.ndarray]:
        """Return `pixel_values` [B, 3, H, W] and `labels` [B] of the rows.

        Raises:
            InputRefused: an index outside 0 to N - 1, or images that come out in several sizes.
        """
        return self._batch(indices, [levels_of(value) for value in self._values(indices)])

    def take_varied(
        self, indices: np.ndarray, width: int, places: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return as `take`, each image cropped and mirrored as its place in the run draws it."""
        images = []
        for value, place in zip(self._values(indices), places, strict=True):
            key = np.array([self.seed % 2**64, int(place)], np.uint64)
            images.append(varied(levels_of(value), np.random.Generator(np.random.Philox(key=key))))
        settings = self.processor.settings
        height, width = _final(settings)
        warped = dataclasses.replace(settings, size=Size(height=height, width=width), crop=None)
        return self._batch(indices, images, ImageProcessor(warped))

    def select(self, indices: np.ndarray) -> ImageRows:
        """Return the rows at `indices` as rows of their own."""
        chosen = [int(index) for index in indices]
        return dataclasses.replace(
            self,
            images=[self.images[index] for index in chosen],
            labels=self.labels[indices],
            digests=[self.digests[index] for index in chosen],
        )

    def _values(self, indices: np.ndarray) -> list[Any]:
        check_indices(indices, len(self))
        return values_of([self.images[int(index)] for index in indices])

    def _batch(self, indices: np.ndarray, images: list[Any], processor: Any = None) -> dict:
        pixels = (processor or self.processor)(images)["pixel_values"]
        return {"pixel_values": pixels, "labels": self.labels[indices]}


def varied(levels: Any, draws: np.random.Generator) -> np.ndarray:
    """Return a random part of an image [H, W, 3], mirrored half of the time.

    Source: RandomResizedCrop and RandomHorizontalFlip of torchvision, before the resize.
    """
    levels = np.asarray(levels.convert("RGB")) if hasattr(levels, "convert") else levels
    height, width = levels.shape[:2]
    for _ in range(TRIES):
        area = height * width * draws.uniform(*AREAS)
        ratio = math.exp(draws.uniform(math.log(RATIOS[0]), math.log(RATIOS[1])))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            top = int(draws.integers(0, height - down + 1))
            left = int(draws.integers(0, width - across + 1))
            levels = levels[top : top + down, left : left + across]
            break
    return np.ascontiguousarray(levels[:, ::-1] if draws.random() < 0.5 else levels)


def with_side(processor: ImageProcessor, side: int) -> ImageProcessor:
    """Return a processor that brings every image to a square, and writes that it does.

    Args:
        processor: the checkpoint's.
        side: pixels a side.
    """
    settings = dataclasses.replace(
        processor.settings, size=Size(height=side, width=side), crop=None
    )
    files = {}
    for name, data in processor.files.items():
        values = json.loads(data)
        section = values.get("image_processor", values)
        for key in ("crop_size", "crop_pct"):
            section.pop(key, None)
        section |= {"size": {"height": side, "width": side}, "do_resize": True}
        section["do_center_crop"] = False
        files[name] = (json.dumps(values, indent=2) + "\n").encode()
    return ImageProcessor(settings, files)


def _final(settings: Any) -> tuple[int, int]:
    """Return height and width of what a processor gives.

    Raises:
        InputRefused: images keep sizes of their own.
    """
    if settings.crop is not None:
        return settings.crop
    size = settings.size
    if size is not None and size.height is not None and size.width is not None:
        return size.height, size.width
    if size is not None and size.shortest_edge is not None:
        return size.shortest_edge, size.shortest_edge
    raise InputRefused(
        "augment_images: the checkpoint's processor leaves images in their sizes; give --image_size"
    )
