"""The one renderer of previews: what every tracker shows is drawn here, of the same bytes.

Pixels are those of `uint8_pixels`, which metrics score too.
"""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dew.artifacts import ImageGrid, Representations, TextSamples, VideoGrid, uint8_pixels
from dew.artifacts.values import Artifact

FRAME_MILLISECONDS = 125
BINS = 30
_GAP = 2
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_KINDS = {
    TextSamples: "text",
    ImageGrid: "images",
    VideoGrid: "video",
    Representations: "representations",
}


@dataclass(frozen=True)
class PreviewFile:
    """A rendered preview: a file name and what is in it."""

    name: str
    content: bytes


class PreviewNames:
    """Numbers the previews of one kind and step: `text-5`, `text-5-1`, `text-5-2`."""

    def __init__(self) -> None:
        self._step = -1
        self._counts: dict[str, int] = {}

    def stem(self, value: Any, step: int) -> str:
        """Return the name of the next preview of this kind at this step, without a suffix."""
        if step != self._step:
            self._step, self._counts = step, {}
        kind = _kind(value)
        count = self._counts.get(kind, 0)
        self._counts[kind] = count + 1
        return f"{kind}-{step}" + (f"-{count}" if count else "")


def preview_files(value: Artifact, stem: str) -> tuple[PreviewFile, ...]:
    """Return a preview as files named `stem` and a suffix.

    Text samples give .txt, images a grid as .png (captions as .txt beside it), clips a grid as
    .gif, representations a histogram of the spread of each dimension as .png and .json.

    Raises:
        TypeError: the value has no form as a file.
        ImportError: Pillow is absent; the extra `images` has it.
    """
    _kind(value)
    if isinstance(value, TextSamples):
        return (PreviewFile(f"{stem}.txt", text_of(value).encode()),)
    if isinstance(value, ImageGrid):
        picture = PreviewFile(f"{stem}.png", png_bytes(grid_of(image_pixels(value))))
        return (picture, *_captions(value.captions, stem))
    if isinstance(value, VideoGrid):
        frames = np.stack([grid_of(clips) for clips in np.moveaxis(clip_pixels(value), 1, 0)])
        return (PreviewFile(f"{stem}.gif", gif_bytes(frames)), *_captions(value.captions, stem))
    assert isinstance(value, Representations)
    histogram = spread_histogram(value)
    return (
        PreviewFile(f"{stem}.png", png_bytes(_bars(histogram["counts"], histogram["edges"]))),
        PreviewFile(f"{stem}.json", json.dumps(histogram).encode()),
    )


def image_pixels(grid: ImageGrid) -> NDArray[np.uint8]:
    """Return images as bytes [N, H, W, C].

    Raises:
        ValueError: another shape, or channels other than 1, 3 or 4.
    """
    return uint8_pixels(_checked(grid.images, 4, "images"))


def clip_pixels(grid: VideoGrid) -> NDArray[np.uint8]:
    """Return clips as bytes [N, T, H, W, C].

    Raises:
        ValueError: another shape, or channels other than 1, 3 or 4.
    """
    return uint8_pixels(_checked(grid.videos, 5, "videos"))


def grid_of(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images [N, H, W, C] side by side in rows, as near to a square as their number."""
    count, height, width, channels = pixels.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    cell_height, cell_width = height + _GAP, width + _GAP
    shape = (rows * cell_height - _GAP, columns * cell_width - _GAP, channels)
    grid = np.full(shape, 255, np.uint8)
    for index, image in enumerate(pixels):
        top, left = index // columns * cell_height, index % columns * cell_width
        grid[top : top + height, left : left + width] = image
    return grid


def png_bytes(pixels: NDArray[np.uint8]) -> bytes:
    """Return one image [H, W, C] as a PNG file."""
    return _saved(_pictures(pixels[None]), "PNG")


def gif_bytes(frames: NDArray[np.uint8]) -> bytes:
    """Return frames [T, H, W, C] as an animated GIF file that repeats for ever."""
    return _saved(_pictures(frames), "GIF", duration=FRAME_MILLISECONDS, loop=0)


def text_of(samples: TextSamples) -> str:
    """Return samples as text: the prompt, then a row after a row."""
    head = f"prompt: {samples.prompt}\n\n" if samples.prompt else ""
    return head + "\n\n---\n\n".join(text_rows(samples)) + "\n"


def text_rows(samples: TextSamples) -> list[str]:
    """Return a text for each row: the decoded one, or its token ids where there is none."""
    if samples.texts:
        return list(samples.texts)
    return [" ".join(map(str, row)) for row in np.asarray(samples.tokens)]


def spread(representations: Representations) -> NDArray[np.float64]:
    """Return the standard deviation of each dimension over the rows, [D]."""
    return np.asarray(representations.features, np.float64).std(axis=0)


def spread_histogram(representations: Representations) -> dict[str, Any]:
    """Return `edges`, `counts`, `rows`, `dimensions` and how many of these are `not_finite`."""
    values = spread(representations)
    finite = values[np.isfinite(values)]
    counts, edges = np.histogram(finite, bins=BINS)
    return {
        "edges": edges.tolist(),
        "counts": counts.tolist(),
        "rows": int(np.shape(representations.features)[0]),
        "dimensions": len(values),
        "not_finite": len(values) - len(finite),
    }


def _kind(value: Any) -> str:
    for kind, name in _KINDS.items():
        if isinstance(value, kind):
            return name
    raise TypeError(
        f"{type(value).__name__} has no form as a preview ({', '.join(k.__name__ for k in _KINDS)} "
        "have); log its numbers as scalars."
    )


def _checked(array: Any, dimensions: int, what: str) -> NDArray[Any]:
    array = np.asarray(array)
    if array.ndim != dimensions or array.shape[-1] not in _MODES or 0 in array.shape:
        expected = "[N, H, W, C]" if dimensions == 4 else "[N, T, H, W, C]"
        raise ValueError(
            f"{what} of shape {array.shape} cannot be drawn; expected {expected} with C of 1, 3 "
            "or 4 and nothing empty."
        )
    return array


def _captions(captions: tuple[str, ...], stem: str) -> tuple[PreviewFile, ...]:
    lines = "".join(f"{index}: {caption}\n" for index, caption in enumerate(captions))
    return (PreviewFile(f"{stem}.txt", lines.encode()),) if captions else ()


def _pictures(frames: NDArray[np.uint8]) -> list[Any]:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('drawing previews needs Pillow: pip install "dew[images]"') from error
    if frames.shape[-1] == 1:
        frames = frames[..., 0]
    return [Image.fromarray(np.ascontiguousarray(frame)) for frame in frames]


def _saved(pictures: list[Any], form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    if len(pictures) > 1:
        options |= {"save_all": True, "append_images": pictures[1:]}
    pictures[0].save(file, format=form, **options)
    return file.getvalue()


def _bars(counts: list[int], edges: list[float]) -> NDArray[np.uint8]:
    """Return a bar chart [H, W, 1], black on white, the first and last edge written below."""
    from PIL import Image, ImageDraw

    bar, height, foot = 12, 160, 16
    picture = Image.new("L", (bar * len(counts), height + foot), 255)
    draw = ImageDraw.Draw(picture)
    for index, count in enumerate(counts):
        level = round(height * count / max(1, *counts))
        if level:
            box = (index * bar, height - level, (index + 1) * bar - 2, height - 1)
            draw.rectangle(box, fill=60)
    draw.text((2, height + 2), f"{edges[0]:.3g}", fill=0)
    draw.text((bar * len(counts) - 60, height + 2), f"{edges[-1]:.3g}", fill=0)
    return np.asarray(picture)[..., None]
