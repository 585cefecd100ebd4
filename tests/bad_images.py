"""Bad image files: too large, cut off, or another program's files under an image's name."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from bad_inputs import Case


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes) -> bytes:
    """Return a grey PNG by hand, whose data may be shorter than its header says."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(data)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def healthy(folder: Path) -> None:
    """Write a good image, which the oracle reads after each bad one."""
    (folder / "x.png").write_bytes(png(4, 3, bytes(15)))


def _cut_jpeg(folder: Path) -> None:
    from PIL import Image

    Image.new("RGB", (64, 64), "red").save(folder / "whole.jpg")
    data = (folder / "whole.jpg").read_bytes()
    (folder / "whole.jpg").unlink()
    (folder / "x.png").write_bytes(data[:400])


def _writes(data: bytes):
    return lambda folder: (folder / "x.png").write_bytes(data)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(touch CANARY) run\nshowpage\n"
ROWS = (
    Case(
        "BP063",
        lambda folder: _writes(png(13_000, 13_000, bytes(13_000 * 13_001)))(folder),
        ("x.png", "169000000 pixels", "at most 89478485"),
        action="image",
        memory=64,
    ),
    Case(
        "BP064",
        _writes(png(60_000, 60_000, bytes(10))),
        ("x.png", "3600000000 pixels", "at most 89478485"),
        action="image",
        memory=64,
    ),
    Case("BP065", _cut_jpeg, ("x.png", "[Tt]runcated", "whole image file"), action="image"),
    Case("BP065-png", _writes(png(64, 64, bytes(9))), ("x.png", "[Cc]ut off"), action="image"),
    Case("BP067", _writes(EPS), ("x.png", "not an image", "PNG, JPEG"), action="image"),
    Case("empty image", _writes(b""), ("x.png", "not an image"), action="image"),
    Case("no image", lambda folder: None, ("x.png", "no such file"), action="image"),
)
"""The rows of the section on images; BP066 and BP068 are in the tests of what reads them."""
