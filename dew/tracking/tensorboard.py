"""`TensorBoardTracker`: an event file, written without TensorFlow."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dew.artifacts import ImageGrid, Representations, TextSamples, VideoGrid
from dew.telemetry.records import Record, record_fields
from dew.tracking.previews import (
    BINS,
    clip_pixels,
    gif_bytes,
    image_pixels,
    png_bytes,
    spread,
    text_rows,
)
from dew.tracking.tracker import ClosedOnExit

SAMPLES = "val/samples"
SPREAD = "val/representations/spread"
_FLUSH_SECONDS = 5
_WAITING = 1000  # events: at TensorBoard's own ten, a report often waits for the writing thread


class TensorBoardTracker(ClosedOnExit):
    """A TensorBoard event file in `directory`, opened on the first value logged into it.

    Scalars become scalar summaries of their names, records text summaries `reporting/<type>`.
    Images become image summaries `val/samples/<index>`, counted over the previews of a step; a
    clip is an animated GIF under such a name, a row of text a text summary. Representations
    become a histogram of the spread of each dimension, `val/representations/spread`.

    Args:
        directory: where TensorBoard looks; made with the file.
    """

    on_disk = True

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        self._writer: Any = None
        self._event: Any = None
        self._summary: Any = None
        self._closed = False
        self._shown: tuple[int, int] = (-1, 0)

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Write scalars, in float32 as the format has it.

        Raises:
            ValueError: the tracker is closed.
            ImportError: tensorboard is absent; the extra `tensorboard` has it.
        """
        writer = self._open()
        value = self._summary.Value
        values = [value(tag=name, simple_value=float(number)) for name, number in scalars.items()]
        self._add(writer, values, step)

    def artifact(self, value: Any, step: int) -> None:
        """Write a record or a preview.

        Raises:
            TypeError: the value has no summary form.
            ValueError: the tracker is closed.
            ImportError: a package is absent; the extra `tensorboard` has it.
        """
        if not isinstance(value, Record | ImageGrid | VideoGrid | TextSamples | Representations):
            raise TypeError(
                f"{type(value).__name__} has no summary form in TensorBoard; log its numbers as "
                "scalars."
            )
        writer = self._open()
        self._add(writer, self._summaries(value, int(step)), step)
        writer.flush()

    def close(self) -> None:
        """Write what is left; closing twice does nothing more."""
        if not self._closed:
            self._closed = True
            if self._writer is not None:
                self._writer.close()

    def _summaries(self, value: Any, step: int) -> list[Any]:
        if isinstance(value, Record):
            text = json.dumps(record_fields(value))
            return [_text(f"reporting/{type(value).__name__}", text)]
        if isinstance(value, Representations):
            from tensorboard.plugins.histogram.summary_v2 import histogram_pb

            values = spread(value)
            return list(histogram_pb(SPREAD, values[np.isfinite(values)], buckets=BINS).value)
        if isinstance(value, TextSamples):
            rows = text_rows(value)
            return [_text(tag, row) for tag, row in zip(self._tags(rows, step), rows, strict=True)]
        if isinstance(value, ImageGrid):
            pixels = image_pixels(value)
            pictures = [(png_bytes(image), image.shape) for image in pixels]
        else:
            pixels = clip_pixels(value)
            pictures = [(gif_bytes(clip), clip.shape[1:]) for clip in pixels]
        tags = self._tags(pictures, step)
        return [self._image(tag, *picture) for tag, picture in zip(tags, pictures, strict=True)]

    def _tags(self, rows: list[Any], step: int) -> list[str]:
        """Return a tag for each row, counted on from what this step has shown."""
        first = self._shown[1] if self._shown[0] == step else 0
        self._shown = (step, first + len(rows))
        return [f"{SAMPLES}/{index}" for index in range(first, first + len(rows))]

    def _open(self) -> Any:
        if self._closed:
            raise ValueError(f"the tracker of {self.directory} is closed; build another to log")
        if self._writer is None:
            try:
                from tensorboard.compat.proto import event_pb2, summary_pb2
                from tensorboard.summary.writer.event_file_writer import EventFileWriter
            except ImportError as error:
                raise ImportError(
                    'TensorBoardTracker needs tensorboard: pip install "dew[tensorboard]"'
                ) from error
            self._event = getattr(event_pb2, "Event")  # noqa: B009 (made when it is imported)
            self._summary = getattr(summary_pb2, "Summary")  # noqa: B009
            self._writer = EventFileWriter(
                str(self.directory), max_queue_size=_WAITING, flush_secs=_FLUSH_SECONDS
            )
        return self._writer

    def _add(self, writer: Any, values: list[Any], step: int) -> None:
        summary = self._summary(value=values)
        writer.add_event(self._event(wall_time=time.time(), step=int(step), summary=summary))

    def _image(self, tag: str, encoded: bytes, shape: tuple[int, ...]) -> Any:
        height, width, channels = shape
        image = self._summary.Image(
            height=height, width=width, colorspace=channels, encoded_image_string=encoded
        )
        return self._summary.Value(tag=tag, image=image)


def _text(tag: str, text: str) -> Any:
    from tensorboard.plugins.text.summary_v2 import text_pb

    return text_pb(tag, text).value[0]
