"""A zip archive whose members are stored uncompressed: where each of them lies in the file."""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple, NoReturn

from dew.errors import InputRefused, shown

MEMBER_LIMIT = 200_000
END = struct.Struct("<4s4HIIH")
END64_PLACE = struct.Struct("<4sIQI")
END64 = struct.Struct("<4sQHHIIQQQQ")
CENTRAL = struct.Struct("<4s6HIIIHHHHHII")
LOCAL = struct.Struct("<4s5HIIIHH")
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF
ENCRYPTED = 1
ZIP64_FIELD = 1


class Member(NamedTuple):
    """One member: its first byte in the file, and how many there are."""

    start: int
    size: int


def stored_members(data: mmap.mmap, where: str) -> dict[str, Member]:
    """Return the members of a zip archive by name; none is read.

    Args:
        data: the whole file, mapped.
        where: the file, for messages.

    Raises:
        InputRefused: not a whole zip archive, a member that is compressed, encrypted, outside the
            file or over another one, a name that leaves the archive or stands twice, more than
            200,000 members, or bytes after the archive.

    Source: PKWARE's APPNOTE 6.3.10, sections 4.3 to 4.5.
    """
    return _Archive(data, where).members()


class _Archive:
    """The reading of one archive's directory."""

    def __init__(self, data: mmap.mmap, where: str):
        self.data, self.where = data, where

    def refuse(self, found: str) -> NoReturn:
        raise InputRefused(
            f"{self.where}: {found}. Expected the zip archive that torch.save writes, whose "
            "members are stored uncompressed; download it again, or save it with torch.save."
        )

    def members(self) -> dict[str, Member]:
        """Return the members, each checked alone and then against its neighbours."""
        count, place, end = self._directory()
        found: dict[str, Member] = {}
        for _ in range(count):
            name, member, place = self._member(place, end)
            if name in found:
                self.refuse(f"the member {shown(name)} stands twice")
            found[name] = member
        if place != end:
            self.refuse(f"the directory of the zip archive holds more than the {count} members")
        before = 0
        for name, member in sorted(found.items(), key=lambda item: item[1]):
            if member.size and member.start < before:
                self.refuse(f"the member {shown(name)} lies over another one")
            before = max(before, member.start + member.size)
        return found

    def _directory(self) -> tuple[int, int, int]:
        """Return the number of members, and where the directory begins and ends."""
        end = len(self.data) - END.size
        if end < 0:
            self.refuse("too short for a zip archive")
        mark, disk, _, _, count, size, start, comment = END.unpack_from(self.data, end)
        if mark != b"PK\x05\x06" or comment:
            self.refuse("no end of a zip archive at the end of the file (cut off?)")
        limit = end
        if end >= END64_PLACE.size:
            mark, _, place, _ = END64_PLACE.unpack_from(self.data, end - END64_PLACE.size)
            if mark == b"PK\x06\x07":
                if place > end - END64_PLACE.size - END64.size:
                    self.refuse("the end of the zip archive points outside the file")
                fields = END64.unpack_from(self.data, place)
                mark, disk, count, size, start = fields[0], fields[4], *fields[7:]
                limit = place
                if mark != b"PK\x06\x06":
                    self.refuse("the end of the zip archive is broken")
        if disk or start + size > limit:
            self.refuse("the directory of the zip archive lies outside the file (cut off?)")
        if count > min(MEMBER_LIMIT, size // CENTRAL.size):
            self.refuse(f"{count} members in a directory of {size} bytes; {MEMBER_LIMIT} at most")
        return count, start, start + size

    def _member(self, place: int, end: int) -> tuple[str, Member, int]:
        """Return name and bytes of the member at `place`, and where the next one stands."""
        if place + CENTRAL.size > end:
            self.refuse("the directory of the zip archive is cut off")
        fields = CENTRAL.unpack_from(self.data, place)
        mark, flags, method = fields[0], fields[3], fields[4]
        packed, size = fields[8], fields[9]
        lengths, offset = fields[10:13], fields[16]
        stop = place + CENTRAL.size + sum(lengths)
        if mark != b"PK\x01\x02" or stop > end:
            self.refuse("the directory of the zip archive is broken")
        raw = self.data[place + CENTRAL.size : place + CENTRAL.size + lengths[0]]
        name = raw.decode("utf-8", "backslashreplace")
        extra = self.data[place + CENTRAL.size + lengths[0] : stop - lengths[2]]
        size, packed, offset = self._wide((size, packed, offset), extra)
        if not _is_plain(name):
            self.refuse(f"the member name {shown(name)} leaves the archive")
        if method or size != packed:
            self.refuse(
                f"the member {shown(name)} is compressed: {packed} bytes that stand for {size}"
            )
        if flags & ENCRYPTED:
            self.refuse(f"the member {shown(name)} is encrypted")
        return name, Member(self._start(name, raw, offset, size), size), stop

    def _wide(self, values: tuple[int, ...], extra: bytes) -> list[int]:
        """Return sizes and offset, those too large for 32 bits from the extra field."""
        wide = b""
        while len(extra) >= 4:
            kind, length = struct.unpack_from("<HH", extra)
            if kind == ZIP64_FIELD:
                wide = extra[4 : 4 + length]
            extra = extra[4 + length :]
        found = []
        for value in values:
            if value == FULL32:
                if len(wide) < 8:
                    self.refuse("the directory of the zip archive lacks a size")
                value, wide = int.from_bytes(wide[:8], "little"), wide[8:]
            found.append(value)
        return found

    def _start(self, name: str, raw: bytes, offset: int, size: int) -> int:
        """Return the first byte of a member, once its own header agrees with the directory."""
        if offset + LOCAL.size > len(self.data):
            self.refuse(f"the member {shown(name)} lies outside the file")
        fields = LOCAL.unpack_from(self.data, offset)
        start = offset + LOCAL.size + fields[9] + fields[10]
        own = self.data[offset + LOCAL.size : offset + LOCAL.size + fields[9]]
        if fields[0] != b"PK\x03\x04" or own != raw or fields[3]:
            self.refuse(f"the member {shown(name)} has a header that differs from the directory's")
        if start + size > len(self.data):
            self.refuse(f"the member {shown(name)} of {size} bytes ends after the file (cut off?)")
        return start


def _is_plain(name: str) -> bool:
    """Say whether a member's name stays inside the archive."""
    parts = name.split("/")
    return "\\" not in name and "\0" not in name and not {"", ".", ".."} & set(parts)
