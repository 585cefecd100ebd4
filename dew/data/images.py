"""Image files as bytes [H, W, 3], and the files of a folder; what is too large is not decoded."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dew.errors import InputRefused, shown

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
PIXEL_LIMIT = 89_478_485
"""The most pixels of an image that is decoded: Pillow's own line, where it only warns."""


def read_image(
    path: str | os.PathLike[str], *, pixel_limit: int = PIXEL_LIMIT, turned: bool = True
) -> NDArray[np.uint8]:
    """Return an image file's pixels.

    Turned as its EXIF orientation says, then to RGB: grey is repeated, palettes are looked up, and
    transparency is dropped, not laid over a background, so that a clear pixel keeps its hidden
    colour. Of an animation, the first frame.

    Args:
        path: PNG, JPEG, WebP, GIF, BMP or TIFF by content, whatever the name says.
        pixel_limit: the most pixels that are decoded; more are refused from the header.
        turned: whether the EXIF orientation counts; what scores files as they lie leaves it out.

    Returns:
        uint8 [H, W, 3].

    Raises:
        InputRefused: no such file, another format, too many pixels, cut off or broken.

    Source: the pixels of transformers 5.24's load_image, and without EXIF those of pytorch-fid.
    """
    path = Path(path)
    where = shown(str(path))[1:-1]
    if not path.is_file():
        raise InputRefused(f"{where}: no such file, or not a regular one. Expected an image file.")
    with path.open("rb") as file:
        return decode_image(file, where, pixel_limit=pixel_limit, turned=turned)


def decode_image(
    file: BinaryIO, where: str, *, pixel_limit: int = PIXEL_LIMIT, turned: bool = True
) -> NDArray[np.uint8]:
    """Return the pixels of an open image file, as `read_image` does.

    Args:
        file: read from where it stands.
        where: what messages call it.
        pixel_limit: as for `read_image`.
        turned: as for `read_image`.

    Returns:
        uint8 [H, W, 3].

    Raises:
        InputRefused: another format, too many pixels, cut off or broken.
    """
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = _opened(file, where, pixel_limit)
        try:
            # Turned before the colours change, as the tag goes with the file's own mode.
            whole = ImageOps.exif_transpose(image) if turned else image
            return np.array(whole.convert("RGB"))
        except Exception as error:  # each decoder has errors of its own
            raise InputRefused(
                f"{where}: cannot be decoded ({shown(str(error))[1:-1]}). Cut off or broken? "
                "Expected a whole image file; get it again."
            ) from None


def image_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the image files right inside a folder, in the order of their names.

    Args:
        folder: its own folders are not looked into. Endings count in either case.

    Raises:
        InputRefused: no such folder, or no image in it; the message says what was looked for.
    """
    folder = Path(folder)
    where = shown(str(folder))[1:-1]
    if not folder.is_dir():
        raise InputRefused(f"{where}: no such folder. Expected a folder of images.")
    entries = sorted(folder.iterdir())
    files = [path for path in entries if path.suffix.lower() in SUFFIXES and path.is_file()]
    if not files:
        deeper = sum(path.is_dir() for path in entries)
        raise InputRefused(
            f"{where}: 0 images found; searched {', '.join(SUFFIXES)} in the folder itself, not "
            f"in the {deeper} folders inside it. Name the folder that holds the files."
        )
    return files


def _opened(file: Any, where: str, pixel_limit: int) -> Any:
    """Return the image, its header read and its pixels not."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(file, formats=FORMATS)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InputRefused(
            f"{where}: {shown(str(error))[1:-1]}. Expected at most {pixel_limit} pixels; scale it "
            "down first."
        ) from None
    except UnidentifiedImageError:
        raise InputRefused(
            f"{where}: not an image by its content. Expected one of {', '.join(FORMATS)}; "
            "convert it."
        ) from None
    except Exception as error:  # a broken header; each format has errors of its own
        raise InputRefused(
            f"{where}: its header cannot be read ({shown(str(error))[1:-1]}). Expected a whole "
            "image file; get it again."
        ) from None
    pixels = image.size[0] * image.size[1]
    if pixels > pixel_limit:
        raise InputRefused(
            f"{where}: {image.size[0]} x {image.size[1]} is {pixels} pixels. Expected at most "
            f"{pixel_limit}; scale it down first."
        )
    return image
