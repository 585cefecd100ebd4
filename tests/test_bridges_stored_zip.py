"""Zip directories read by hand: every field that an archive can forge, and sizes past 32 bits."""

from __future__ import annotations

import io
import mmap
import struct
import zipfile
import zlib

import pytest

from bridges.files.stored_zip import Member, stored_members
from dew.errors import InputRefused

FULL = 0xFFFFFFFF


def mapped(content):
    """The bytes as a mapping, as a file gives it."""
    mapping = mmap.mmap(-1, max(len(content), 1))
    mapping[: len(content)] = content
    return mapping


def archive(members, **options):
    """What Python's zipfile writes of stored members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as z:
        for name, content in members.items():
            z.writestr(name, content)
    return out.getvalue()


def wide(members):
    """An archive whose sizes and offsets all stand in 64-bit fields (APPNOTE 4.3.14 and 4.5.3)."""
    body, directory = b"", b""
    for name, content in members.items():
        raw, offset, check = name.encode(), len(body), zlib.crc32(content)
        local = struct.pack("<HHQQ", 1, 16, len(content), len(content))
        body += struct.pack(
            "<4s5HIIIHH", b"PK\3\4", 45, 0, 0, 0, 0, check, FULL, FULL, len(raw), 20
        )
        body += raw + local + content
        extra = struct.pack("<HHQQQ", 1, 24, len(content), len(content), offset)
        directory += struct.pack(
            "<4s6HIIIHHHHHII",
            *(b"PK\1\2", 45, 45, 0, 0, 0, 0, check, FULL, FULL),
            *(len(raw), len(extra), 0, 0, 0, 0, FULL),
        )
        directory += raw + extra
    start, end = len(body), len(body) + len(directory)
    counts = (len(members), len(members), len(directory), start)
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, *counts)
    place = struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
    last = struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, FULL, FULL, 0)
    return body + directory + end64 + place + last


MEMBERS = {"a/data.pkl": b"pickle", "a/data/0": b"0123456789", "a/empty": b""}


@pytest.mark.parametrize("content", [archive(MEMBERS), wide(MEMBERS)], ids=["32 bits", "64 bits"])
def test_every_member_is_found_where_its_bytes_are(content):
    found = stored_members(mapped(content), "f")
    assert {name: content[m.start : m.start + m.size] for name, m in found.items()} == MEMBERS
    assert isinstance(found["a/empty"], Member)
    # Python's own reader takes the archive too.
    with zipfile.ZipFile(io.BytesIO(content)) as z:
        assert {name: z.read(name) for name in z.namelist()} == MEMBERS


def patched(place, value, content=None):
    """An archive of one member with some bytes of its directory or end replaced.

    Args:
        place: from the directory's first byte, or, negative, from the end of the file.
    """
    content = bytearray(archive({"a/b": b"12345678"}) if content is None else content)
    start = content.index(b"PK\1\2") + place if place >= 0 else len(content) + place
    content[start : start + len(value)] = value
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "too short", id="nothing"),
        pytest.param(archive(MEMBERS)[:-1], "no end of a zip", id="cut off"),
        pytest.param(archive(MEMBERS) + b"x", "no end of a zip", id="bytes behind"),
        pytest.param(patched(-2, b"\1\0"), "no end of a zip", id="a comment"),
        pytest.param(patched(-10, b"\xff\xff"), "directory .* lies outside", id="directory size"),
        pytest.param(patched(-6, b"\xff\xff\xff\x7f"), "outside the file", id="directory place"),
        pytest.param(patched(-12, b"\xff\xff"), "members in a directory", id="many"),
        pytest.param(patched(-12, b"\0\0"), "more than the 0 members", id="few"),
        pytest.param(patched(0, b"PK\7\7"), "directory of the zip archive is broken", id="mark"),
        pytest.param(patched(8, b"\1\0"), "'a/b' is encrypted", id="encrypted"),
        pytest.param(patched(10, b"\x08\0"), "'a/b' is compressed", id="method"),
        pytest.param(patched(20, b"\7\0"), "7 bytes that stand for 8", id="packed size"),
        pytest.param(patched(20, b"\xff\0\0\0\xff\0\0\0"), "255 bytes ends after", id="size"),
        pytest.param(patched(20, b"\xff" * 8), "lacks a size", id="64 bits without the field"),
        pytest.param(patched(42, b"\1"), "header that differs", id="offset"),
        pytest.param(patched(42, b"\xff\xff\0"), "'a/b' lies outside", id="far offset"),
        pytest.param(patched(46, b"x"), "header that differs", id="another name"),
        pytest.param(archive({"../x": b""}), r"'\.\./x' leaves", id="up"),
        pytest.param(archive({"/x": b""}), "'/x' leaves", id="absolute"),
        pytest.param(archive({"a//x": b""}), "leaves", id="empty part"),
        pytest.param(archive({"a\\x": b""}), "leaves", id="backslash"),
        pytest.param(
            archive({"a": b"1" * 100}, compression=zipfile.ZIP_DEFLATED),
            "compressed",
            id="deflated",
        ),
    ],
)
def test_a_forged_archive_is_refused(content, words):
    with pytest.raises(InputRefused, match=words):
        stored_members(mapped(content), "f")


def test_members_over_each_other_or_of_one_name_are_refused():
    twice = archive({"a/b": b"1", "a/c": b"2"}).replace(b"a/c", b"a/b")
    with pytest.raises(InputRefused, match="'a/b' stands twice"):
        stored_members(mapped(twice), "f")
    # The first member's bytes hold the header of the second, as in quines.
    inner = archive({"a/2": b"xx"})
    local = inner[: inner.index(b"PK\1\2")]
    outer = archive({"a/1": local + b"....", "a/2": b"xx"})
    place = outer.index(b"PK\1\2", outer.index(b"PK\1\2") + 1) + 42
    forged = outer[:place] + struct.pack("<I", outer.index(local)) + outer[place + 4 :]
    with pytest.raises(InputRefused, match="lies over another one"):
        stored_members(mapped(forged), "f")
