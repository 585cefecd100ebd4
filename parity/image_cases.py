"""Folders of pictures that the checks of image metrics are about, as the bytes of their files."""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NO_NUMBER = "no number"
KINDS = ("RGB", "L", "RGBA", "P", "I;16", "LA")
SIZES = ((8, 8), (8, 6), (300, 200), (41, 67))


@dataclass(frozen=True)
class FolderCase:
    """Two folders, and how they are asked about.

    Args:
        name: of the case.
        generated: the files of the first, name to bytes.
        real: the files of the second.
        features: which of Inception's.
        batch: pictures that a tool takes at once; unequal sizes need 1.
    """

    name: str
    generated: Mapping[str, bytes]
    real: Mapping[str, bytes]
    features: int
    batch: int


def folder_cases(seed: int) -> tuple[FolderCase, ...]:
    """Return the cases: many and few pictures for the features, all kinds and sizes, one, none."""
    draw = np.random.default_rng(seed)

    def files(
        count: int, *, kinds: bool = False, sizes: bool = False, dark: bool = False
    ) -> dict[str, bytes]:
        made = {}
        for index in range(count):
            kind = KINDS[index % len(KINDS)] if kinds else "RGB"
            height, width = SIZES[index % len(SIZES)] if sizes else (24, 32)
            levels = picture(draw, height, width)
            made[f"{index:03}.png"] = png(levels // 2 if dark else levels, kind)
        return made

    some = files(5, dark=True)
    return (
        FolderCase("more pictures than features", files(81), files(70, dark=True), 64, 50),
        FolderCase("grey, RGBA, palette and 16-bit, fewer than features", files(19, kinds=True),
                   files(13, kinds=True, dark=True), 64, 8),
        FolderCase("mixed sizes", files(12, sizes=True), files(9, sizes=True, dark=True), 64, 1),
        FolderCase("one picture", files(1), some, 64, 1),
        FolderCase("no picture", {}, some, 64, 1),
    )  # fmt: skip


def picture(draw: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return uint8 [height, width, 3]: smooth colours with some noise on them."""
    rows, columns = np.linspace(0, 6, height), np.linspace(0, 6, width)
    phases = draw.uniform(0, 6, (2, 1, 1, 3))
    waves = np.sin(rows[:, None, None] + phases[0]) * np.cos(columns[None, :, None] + phases[1])
    return np.clip(127.5 + 90 * waves + draw.normal(0, 12, waves.shape), 0, 255).astype(np.uint8)


def png(levels: np.ndarray, kind: str) -> bytes:
    """Return the PNG file of a picture in one of the kinds that a PNG can hold."""
    from PIL import Image

    image = Image.fromarray(levels)
    if kind == "I;16":
        image = Image.fromarray(levels[..., 0].astype(np.uint16) * 3)
    elif kind in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(levels[..., 1]))
        image = image.convert(kind)
    else:
        image = image.convert(kind)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@contextmanager
def written(*folders: Mapping[str, bytes]) -> Iterator[list[Path]]:
    """Yield folders that hold the given files, and nothing else, for as long as they are used."""
    with tempfile.TemporaryDirectory() as root:
        paths = []
        for index, files in enumerate(folders):
            paths.append(Path(root) / str(index))
            paths[-1].mkdir()
            for name, data in files.items():
                (paths[-1] / name).write_bytes(data)
        yield paths


def number(compute: Callable[[], Any], *, refusals: type[Exception] = Exception) -> float | str:
    """Return a score, or `NO_NUMBER` and why where it is refused or is not finite.

    Args:
        compute: gives the score; what it warns of is not told.
        refusals: the errors that count as a refusal.
    """
    return numbers("", ("",), lambda: (compute(),), refusals=refusals)[""]


def numbers(
    case: str,
    parts: Sequence[str],
    compute: Callable[[], Sequence[Any]],
    *,
    refusals: type[Exception] = Exception,
) -> dict[str, float | str]:
    """Return several scores of one case by name, as `number` does.

    Args:
        case: its name, which the scores' names begin with.
        parts: what the names end with.
        compute: gives the scores.
        refusals: the errors that count as a refusal.
    """
    names = [f"{case}, {part}" if case else part for part in parts]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = [float(score) for score in compute()]
        except refusals as error:
            text = " ".join(str(error).split())
            return dict.fromkeys(names, f"{NO_NUMBER} ({type(error).__name__}: {text:.120})")
    scores = [score if np.isfinite(score) else NO_NUMBER for score in found]
    return dict(zip(names, scores, strict=True))
