"""Images of any kind as pixels [H, W, 3]: paths, addresses, base64, bytes, Pillow, arrays."""

from __future__ import annotations

import base64
import binascii
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dew.data.images import PIXEL_LIMIT, decode_image, read_image
from dew.errors import InputRefused, shown
from dew.inference.pipelines.fetching import fetched, is_url

EXPECTED = "a path, an address, base64, bytes, a Pillow image, or uint8 levels [H, W, 3]"
KEYS = ("bytes", "path")
"""What a column of images holds where a dataset has not decoded them."""


def picture(value: Any, *, timeout: float | None = None) -> NDArray[np.uint8]:
    """Return the pixels of an image.

    Files and Pillow images are turned as their EXIF says and made RGB, transparency dropped; an
    array is taken as it is.

    Args:
        value: a path; an address beginning with http:// or https://; base64, with or without
            `data:image/...;base64,` before it; a file's bytes; a Pillow image; uint8 levels
            [H, W, 3], [3, H, W] or [H, W]; or a dict of `bytes` and `path`.
        timeout: seconds to wait for an address.

    Returns:
        uint8 [H, W, 3].

    Raises:
        InputRefused: none of these, an image that does not decode, or too many pixels.

    Source: the pixels of transformers 5.24's load_image.
    """
    if isinstance(value, dict) and set(value) <= set(KEYS) and any(value.values()):
        value = next(value[key] for key in KEYS if value.get(key))
    if isinstance(value, str) and is_url(value):
        return decode_image(io.BytesIO(fetched(value, timeout=timeout)), shown(value)[1:-1])
    if isinstance(value, str) and not _is_file(value):
        return decode_image(io.BytesIO(_from_base64(value)), "the image in base64")
    if isinstance(value, str | os.PathLike):
        return read_image(value)
    if isinstance(value, bytes | bytearray):
        return decode_image(io.BytesIO(value), f"the image of {len(value)} bytes")
    if isinstance(value, np.ndarray):
        return _levels(value)
    return _of_pillow(value)


def _is_file(value: str) -> bool:
    try:
        return Path(value).is_file()
    except (OSError, ValueError):  # base64 is longer than a name may be
        return False


def _from_base64(value: str) -> bytes:
    text = value.split(",", 1)[-1] if value.startswith("data:image/") else value
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InputRefused(
            f"{shown(value)}: neither a file that is there nor base64. Expected {EXPECTED}; check "
            "the path."
        ) from None


def _levels(value: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an array's levels [H, W, 3]."""
    if value.dtype != np.uint8 or value.ndim not in (2, 3) or 0 in value.shape:
        raise InputRefused(
            f"an array {value.dtype} {list(value.shape)}; expected uint8 levels [H, W, 3] or "
            "[H, W], from 0 to 255"
        )
    if value.ndim == 2:
        return np.repeat(value[..., None], 3, axis=2)
    if value.shape[2] != 3 and value.shape[0] == 3:
        value = value.transpose(1, 2, 0)
    if value.shape[2] != 3:
        raise InputRefused(
            f"an array of {value.shape[2]} channels {list(value.shape)}; expected [H, W, 3]"
        )
    return value


def _of_pillow(value: Any) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    if not isinstance(value, Image.Image):
        raise InputRefused(f"an image of type {type(value).__name__}; expected {EXPECTED}")
    pixels = value.size[0] * value.size[1]
    if not 0 < pixels <= PIXEL_LIMIT:
        raise InputRefused(
            f"an image of {value.size[0]} x {value.size[1]} is {pixels} pixels; expected 1 to "
            f"{PIXEL_LIMIT}"
        )
    try:
        return np.array(ImageOps.exif_transpose(value).convert("RGB"))
    except Exception as error:  # a lazy image decodes now; each decoder has errors of its own
        raise InputRefused(
            f"an image cannot be decoded ({shown(str(error))[1:-1]}). Cut off or broken? Expected "
            "a whole image."
        ) from None
