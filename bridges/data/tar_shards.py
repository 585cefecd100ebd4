"""Samples of tar shards as WebDataset groups them, read in place: nothing is ever extracted."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bridges.data.row_problems import refuse_pointer
from bridges.files.regular_file import open_regular, shown_path
from dew.errors import InputRefused, shown

KEY = "__key__"
SUFFIX_START = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)")
LONGEST_NAME = 4096
META = re.compile(r"__[^/]*__($|/)")
BLOCK = 512
TEXTS, NUMBERS = ("txt", "text", "transcript"), ("cls", "cls2", "class", "count", "index", "inx")

Sample = dict[str, Any]


def tar_samples(path: Path, start: int = 0) -> Iterator[tuple[int, str, Sample]]:
    """Give the samples of a shard: runs of members whose names are alike up to the first dot.

    Args:
        path: an uncompressed tar.
        start: the byte where a sample begins, as this function gave it; 0 for the first.

    Returns:
        An iterator over the byte where each sample begins, its place for messages, and its
        members' bytes by suffix, with the shared name as `__key__`.

    Raises:
        InputRefused: a member that is a link or a device or whose name leads out of the archive, a
            suffix twice in a sample, or an archive that is damaged or cut off.

    Source: the grouping of webdataset 1.0.2, tests/test_bridges_tar_shards.py.
    """
    begun, sample = start, {}
    for offset, name, data in _members(path, start):
        found = SUFFIX_START.fullmatch(name)
        if found is None:
            continue  # a name without a dot is part of no sample
        key, suffix = found[1], found[2].lower()
        if not sample or sample[KEY] != key:
            if sample:
                yield begun, _place(path, sample), sample
            begun, sample = offset, {KEY: key}
        if suffix in sample:
            raise InputRefused(
                f"{shown_path(path)}: two members {shown(suffix)} of the sample {shown(key)}. "
                "Expected one of a kind, and the members of a sample beside each other; write the "
                "shard again."
            )
        sample[suffix] = data
    if sample:
        yield begun, _place(path, sample), sample


def decoded_sample(sample: Sample, place: str) -> Sample:
    """Return a sample with its texts, numbers, JSON and arrays as Python's and NumPy's values.

    Images, sounds and other members stay the bytes of their files. The fields of a JSON object are
    the sample's own too, and a `txt` is its `text`, where no member bears the name.

    Raises:
        InputRefused: a member that is not what its suffix says.
    """
    row = dict(sample)
    for suffix, data in sample.items():
        kind = suffix.rsplit(".", 1)[-1]
        if not isinstance(data, bytes):
            continue
        try:
            if kind in TEXTS:
                row[suffix] = data.decode()
            elif kind in NUMBERS:
                row[suffix] = int(data)
            elif kind in ("json", "jsn"):
                row[suffix] = json.loads(data)
            elif kind == "npy":
                row[suffix] = np.load(io.BytesIO(data), allow_pickle=False)
        except Exception as error:  # NumPy's header parser lets any error out
            raise InputRefused(
                f"{place}: member {shown(suffix)} is not what its suffix says: "
                f"{shown(str(error))}. Write the sample again."
            ) from None
    for fields in (row.get("json"), {"text": row["txt"]} if "txt" in row else None):
        if isinstance(fields, dict):
            row = {**fields, **row}
    return row


def _members(path: Path, start: int) -> Iterator[tuple[int, str, bytes]]:
    """Give where each regular member begins, its name and its bytes."""
    with open_regular(path) as file:
        refuse_pointer(file.read(64), path)
        size = os.fstat(file.fileno()).st_size
        file.seek(start)
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                while (member := archive.next()) is not None:
                    vars(archive)["members"] = []  # it would keep every header it has read
                    _check_member(member, path, size)
                    if member.isreg() and not META.match(member.name):
                        content = archive.extractfile(member)
                        assert content is not None
                        yield member.offset, member.name, content.read()
                end = archive.offset
        except InputRefused:
            raise
        except (tarfile.TarError, EOFError, OSError, ValueError) as error:
            raise InputRefused(
                f"{shown_path(path)}: cannot be read as a tar: {shown(str(error))}. Expected an "
                "uncompressed, whole archive; get or write it again."
            ) from None
        _check_end(file, path, end, size)


def _check_member(member: tarfile.TarInfo, path: Path, size: int) -> None:
    """Refuse a member that points elsewhere, or that claims more than the file holds."""
    problem = None
    parts = member.name.replace("\\", "/").split("/")
    if member.name.startswith(("/", "\\")) or ".." in parts or re.match(r"[A-Za-z]:", member.name):
        problem = "a name that leads out of the archive"
    elif member.issym() or member.islnk():
        problem = f"a link to {shown(member.linkname)}"
    elif not (member.isreg() or member.isdir()):
        problem = "no regular file"
    elif len(member.name) > LONGEST_NAME:
        problem = f"a name of {len(member.name)} characters"
    elif member.issparse():
        problem = "a sparse file"
    elif member.isreg() and member.offset_data + member.size > size:
        problem = f"{member.size} bytes by its header, more than the archive has left: cut off"
    if problem:
        raise InputRefused(
            f"{shown_path(path)}: member {shown(member.name)} at byte {member.offset}: {problem}. "
            "Expected regular files under plain names; nothing was extracted. Write the shard "
            "again."
        )


def _check_end(file: BinaryIO, path: Path, end: int, size: int) -> None:
    """Refuse an archive that stops at a damaged header, which `tarfile` takes for its end."""
    file.seek(end)
    rest = file.read(BLOCK)
    if rest.strip(b"\0"):
        raise InputRefused(
            f"{shown_path(path)}: a damaged header at byte {end} of {size}. Expected a member or "
            "the end of the archive; get or write it again."
        )
    if not rest:
        warnings.warn(
            f"{shown_path(path)}: no mark of the archive's end; what is there is read, and samples "
            "may be missing (cut off while it was written?)",
            stacklevel=2,
        )


def _place(path: Path, sample: Sample) -> str:
    return f"{shown_path(path)}: sample {shown(sample[KEY], 80)}"
