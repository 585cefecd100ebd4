"""Images and sounds of a table, read when they are wanted: the table holds where they are."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridges.finetune.row_table import refuse_rows
from dew.data.images import FORMATS, PIXEL_LIMIT, read_image
from dew.errors import InputRefused, shown

READ_ROWS = 256


@dataclass(frozen=True)
class Cell:
    """One image or sound of a table, not read yet.

    Args:
        records: the table.
        column: whose.
        row: which.
    """

    records: Any = field(repr=False)
    column: str
    row: int

    @property
    def place(self) -> str:
        """Where it stands, for a message."""
        return self.records.place(self.row)


def cells(records: Any, column: str) -> list[Cell]:
    """Return the cells of a column."""
    return [Cell(records, column, row) for row in range(len(records))]


def values_of(chosen: Sequence[Cell]) -> list[Any]:
    """Return what the cells hold: a path, the bytes of a file, or a Pillow image."""
    by_table: dict[int, list[int]] = {}
    for place, cell in enumerate(chosen):
        by_table.setdefault(id(cell.records), []).append(place)
    found: list[Any] = [None] * len(chosen)
    for places in by_table.values():
        first = chosen[places[0]]
        rows = first.records.take([chosen[p].row for p in places], columns=[first.column])
        for place, row in zip(places, rows, strict=True):
            found[place] = row[first.column]
    return found


def media_digests(chosen: Sequence[Cell], decode: Callable[[Any], Any], what: str) -> list[str]:
    """Return a hash of each file's bytes, once it is known that all of them can be decoded.

    Args:
        chosen: which.
        decode: raises `InputRefused` for what cannot be.
        what: they are, for the message.

    Raises:
        InputRefused: some cannot be decoded; the first ones are named by row.
    """
    digests, problems = [], []
    for cell, value in _read(chosen):
        try:
            decode(value)
        except InputRefused as error:
            problems.append(f"{cell.place}: {error}")
        digests.append(_digest(value))
    refuse_rows(f"data: {what} that cannot be decoded:", problems)
    return digests


def levels_of(value: Any) -> NDArray[np.uint8] | Any:
    """Return an image's levels [H, W, 3], or the Pillow image that it is.

    Raises:
        InputRefused: no image, or a broken one.
    """
    if isinstance(value, str | os.PathLike):
        return read_image(value)
    if not isinstance(value, bytes):
        if hasattr(value, "getbands") or isinstance(value, np.ndarray):
            return value
        raise InputRefused(f"found {shown(value, 60)}; expected an image file or its bytes")
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(value), formats=FORMATS)
            if image.size[0] * image.size[1] > PIXEL_LIMIT:
                raise InputRefused(f"{image.size[0]} x {image.size[1]} are too many pixels")
            return np.array(ImageOps.exif_transpose(image).convert("RGB"))
    except InputRefused:
        raise
    except Exception as error:  # each decoder has errors of its own
        raise InputRefused(f"cannot be decoded ({shown(str(error), 120)[1:-1]})") from None


def samples_of(value: Any, rate: int) -> NDArray[np.float32]:
    """Return a sound's samples at a rate, float32 [samples].

    Raises:
        InputRefused: no sound, or a broken one.
    """
    from bridges.audio.sound import as_sound

    if isinstance(value, str | os.PathLike):
        return as_sound(value, rate, None)
    if isinstance(value, dict) and {"array", "sampling_rate"} <= set(value):
        return as_sound(np.asarray(value["array"], np.float32), rate, int(value["sampling_rate"]))
    if not isinstance(value, bytes):
        raise InputRefused(f"found {shown(value, 60)}; expected a sound file or its bytes")
    # Sounds are read from files alone, with all that is checked there.
    with tempfile.NamedTemporaryFile(suffix=".sound") as file:
        file.write(value)
        file.flush()
        try:
            return as_sound(Path(file.name), rate, None)
        except InputRefused as error:
            raise InputRefused(str(error).removeprefix(f"{file.name}: ")) from None


def _read(chosen: Sequence[Cell]) -> Iterator[tuple[Cell, Any]]:
    for start in range(0, len(chosen), READ_ROWS):
        part = chosen[start : start + READ_ROWS]
        yield from zip(part, values_of(part), strict=True)


def _digest(value: Any) -> str:
    if isinstance(value, str | os.PathLike):
        path = Path(value)
        data = path.read_bytes() if path.is_file() else b""
    elif isinstance(value, bytes):
        data = value
    elif hasattr(value, "tobytes"):
        data = value.tobytes()
    else:
        data = repr(value).encode()
    return hashlib.sha256(data).hexdigest()
