"""Image segmentation: images in, a mask for each label that the model sees in them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dew.errors import InputRefused, shown
from dew.inference.pipelines.label_names import label_names
from dew.inference.pipelines.picture_batches import is_picture, picture_outputs, prepared
from dew.inference.pipelines.task import Options, Task

SUBTASKS = (None, "semantic")
STRIP = 64
"""Rows of an image whose scores are held at a time: of 150 labels a whole photo's are gigabytes."""


class ImageSegmentation(Task):
    """Says which label each pixel of an image has.

    Options of a call:

    - `subtask`: "semantic" or None; instances are not told apart.
    - `threshold`, `mask_threshold`, `overlap_mask_area_threshold`: of instances, without effect
      here as in transformers' semantic segmentation.
    - `timeout`: seconds to wait for an image's address.

    A result is a list of `{"score": None, "label": ..., "mask": ...}` of the labels that the image
    has; a mask is a Pillow image of mode L and the image's size, 255 where the label is.
    """

    name = "image-segmentation"
    fits = ("image-segmentation",)
    needs = "images"
    reads = "an image: a path, an address, base64, bytes, a Pillow image or uint8 levels"
    defaults: ClassVar[Mapping[str, Any]] = {
        "subtask": None,
        "threshold": 0.9,
        "mask_threshold": 0.5,
        "overlap_mask_area_threshold": 0.5,
        "timeout": None,
    }

    def is_one(self, inputs: Any) -> bool:
        """Tell whether `inputs` is one image."""
        return is_picture(inputs)

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        if options["subtask"] not in SUBTASKS:
            raise InputRefused(
                f"subtask is {shown(options['subtask'])}; expected 'semantic' or None: the model "
                "tells labels apart, not instances"
            )
        return options

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return each image's labels with their masks."""
        pixels, sizes = prepared(self.processor, items, timeout=options["timeout"])
        rows = picture_outputs(self.bundle, pixels, "logits", batch_size=batch_size)
        return [self._masks(row, size) for row, size in zip(rows, sizes, strict=True)]

    def _masks(self, logits: NDArray[np.float32], size: tuple[int, int]) -> list[dict[str, Any]]:
        """Return the masks of one image of `size`, height and width, from [labels, H, W]."""
        from PIL import Image

        names = label_names(self.bundle.config, len(logits))
        seen = labels_of_pixels(logits, size)
        return [
            {
                "score": None,
                "label": names[label],
                "mask": Image.fromarray(((seen == label) * 255).astype(np.uint8)),
            }
            for label in np.unique(seen)
        ]


def labels_of_pixels(logits: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.intp]:
    """Return the likeliest label of each pixel, [H, W].

    Args:
        logits: [labels, h, w], brought to the image's size bilinearly, half a pixel off the edges.
        size: H and W.

    Source: torch.nn.functional.interpolate(mode="bilinear", align_corners=False), argmax after.
    """
    logits = logits.astype(np.float32)
    left, right, share = _neighbours(logits.shape[2], size[1])
    above, below, low = _neighbours(logits.shape[1], size[0])
    strips = []
    for first in range(0, size[0], STRIP):
        rows = slice(first, first + STRIP)
        up, down, part = logits[:, above[rows]], logits[:, below[rows]], low[rows, None]
        upper = up[:, :, left] * (1 - share) + up[:, :, right] * share
        lower = down[:, :, left] * (1 - share) + down[:, :, right] * share
        strips.append(np.argmax(upper * (1 - part) + lower * part, axis=0))
    return np.concatenate(strips)


def _neighbours(length: int, wanted: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
    """Return for each new place the two old ones that it lies between, and the second's share."""
    scale = np.float32(length) / np.float32(wanted)
    places = scale * (np.arange(wanted, dtype=np.float32) + np.float32(0.5)) - np.float32(0.5)
    places = np.maximum(places, np.float32(0))
    first = np.minimum(places.astype(np.int64), length - 1)
    return first, np.minimum(first + 1, length - 1), places - first.astype(np.float32)
