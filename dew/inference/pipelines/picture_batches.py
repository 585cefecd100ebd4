"""Images through a model: those of one size together, a batch at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dew.errors import InputRefused
from dew.inference.bundle import Bundle
from dew.inference.pipelines.pictures import picture

PIXELS = "pixel_values"
Pixels = NDArray[np.float32]


def is_picture(value: Any) -> bool:
    """Return whether `value` is one image: a path, bytes, a Pillow image or an array of levels."""
    if isinstance(value, np.ndarray):
        return value.ndim < 4
    return isinstance(value, str | bytes | bytearray | Mapping | os.PathLike) or hasattr(
        value, "getbands"
    )


def prepared(
    processor: Any, values: Sequence[Any], *, timeout: float | None = None
) -> tuple[list[Pixels], list[tuple[int, int]]]:
    """Return what a model reads of each image, float32 [C, H, W], and each one's own H and W.

    Args:
        processor: the checkpoint's image processor.
        values: images of any kind; see `picture`.
        timeout: seconds to wait for an address.

    Raises:
        InputRefused: as `picture`; the message says which of several images it was.
    """
    pixels, sizes = [], []
    for place, value in enumerate(values):
        try:
            levels = picture(value, timeout=timeout)
            pixels.append(processor([levels])[PIXELS][0])
        except InputRefused as error:
            if len(values) == 1:
                raise
            raise InputRefused(f"image {place} of {len(values)}: {error}") from None
        sizes.append(levels.shape[:2])
    return pixels, sizes


def batches(pixels: Sequence[Pixels], batch_size: int) -> Iterator[tuple[list[int], Pixels]]:
    """Yield the places of a batch's images and their pixels [N, C, H, W].

    Images of one size share batches. Where there are more than `batch_size` of them, the last
    batch is filled up with its last image: a smaller one would be compiled once more.

    Args:
        pixels: of each image.
        batch_size: the most images a batch.
    """
    by_size: dict[tuple[int, ...], list[int]] = {}
    for place, one in enumerate(pixels):
        by_size.setdefault(one.shape, []).append(place)
    for places in by_size.values():
        for first in range(0, len(places), batch_size):
            batch = places[first : first + batch_size]
            missing = batch_size - len(batch) if len(places) > batch_size else 0
            yield batch, np.stack([pixels[at] for at in (*batch, *batch[-1:] * missing)])


def picture_outputs(
    bundle: Bundle,
    pixels: Sequence[Pixels],
    name: str,
    *,
    batch_size: int,
    beside: Mapping[str, Any] | None = None,
) -> list[NDArray[Any]]:
    """Return one of the model's outputs for each image, without a batch axis.

    Args:
        bundle: a model of images.
        pixels: of each image.
        name: the output's.
        batch_size: the most images a batch.
        beside: other inputs of every batch.

    Raises:
        InputRefused: the model gives no such output.
    """
    waiting = []
    for places, values in batches(pixels, batch_size):
        found = bundle(**{PIXELS: values}, **(beside or {}))
        if name not in found:
            raise InputRefused(
                f"the model gives no {name}; it gives {', '.join(found)}: see load(..., task=...)"
            )
        # Dispatched only: the next batch is stacked while this one is computed.
        waiting.append((places, found[name]))
    results: list[Any] = [None] * len(pixels)
    for places, values in waiting:
        host = np.asarray(values)
        for row, place in enumerate(places):
            results[place] = host[row]
    return results
