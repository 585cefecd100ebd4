"""Opening a file that somebody else made: regular files only, inside their folder, named safely."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from dew.errors import InputRefused, shown

SHOWN_PATH = 300
SHARED_BLOBS = ".huggingface-shared-blobs"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return `path` on one printable line; of an overlong one the end, which names the file."""
    text = shown(os.fspath(path), limit=1 << 20)[1:-1]
    return text if len(text) <= SHOWN_PATH else f"...{text[3 - SHOWN_PATH :]}"


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open `path` for reading bytes, without ever waiting for a writer.

    Args:
        path: a regular file, or a link to one.

    Returns:
        The open file, at its first byte.

    Raises:
        InputRefused: nothing there, not readable, or a folder, pipe, socket or device.
    """
    try:
        # A pipe without a writer would block a plain open; this flag makes it return at once.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC)
    except FileNotFoundError:
        linked = os.path.islink(path)
        found = "a link to a file that is not there" if linked else "no such file"
        raise InputRefused(
            f"{shown_path(path)}: {found}. Expected a regular file; "
            f"{'repair the link or copy the file here' if linked else 'check the path'}."
        ) from None
    except (OSError, ValueError) as error:
        raise InputRefused(
            f"{shown_path(path)}: cannot be opened ({_reason(error)}). "
            "Expected a readable regular file; check the path and its permissions."
        ) from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = next((name for test, name in KINDS if test(mode)), "something else")
        raise InputRefused(
            f"{shown_path(path)}: found {kind}, not a regular file. Put the file itself there."
        )
    return os.fdopen(handle, "rb")


def contained(folder: str | os.PathLike[str], name: str) -> Path:
    """Return the path of the file `name` of `folder`, once it is sure to lie there.

    A link may lead to another place of the same folder or, as in the hub's cache, from
    `snapshots/<revision>/` to the `blobs/` beside `snapshots/`, or to the one that all
    repositories of the cache share.

    Args:
        folder: the folder that was handed over.
        name: a plain file name, such as an index gives.

    Returns:
        `folder / name`; the file need not exist.

    Raises:
        InputRefused: the name is no plain file name, or a link leads out of the folder.
    """
    if not _is_plain(name):
        raise InputRefused(
            f"{shown_path(folder)}: the file name {shown(name)} leaves the folder or is no plain "
            "name. Expected a file name without any folder part; put the file into the folder."
        )
    path = Path(folder) / name
    if path.is_symlink() and path.exists():
        target, roots = path.resolve(), _roots(Path(folder).resolve())
        if not any(target.is_relative_to(root) for root in roots):
            raise InputRefused(
                f"{shown_path(path)}: a link to {shown_path(target)}, which lies outside "
                "the folder. Expected the file itself; copy it into the folder."
            )
    return path


def optional(folder: str | os.PathLike[str], name: str) -> Path | None:
    """Return `contained(folder, name)`, or None where nothing bears the name.

    Args:
        folder: the folder that was handed over.
        name: a plain file name.

    Raises:
        InputRefused: see `contained`.
    """
    return contained(folder, name) if os.path.lexists(Path(folder) / name) else None


def _is_plain(name: str) -> bool:
    """Say whether `name` can only name a file right inside a folder."""
    if not isinstance(name, str) or name in ("", ".", ".."):
        return False
    return not any(c in "/\\:" or ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in name)


def _roots(folder: Path) -> list[Path]:
    """Return the folders that a link inside the resolved `folder` may lead to."""
    roots = [folder]
    for parent in (folder, *folder.parents):
        if parent.parent.name == "snapshots":
            repository = parent.parent.parent
            roots.append(repository / "blobs")
            shared = repository.parent / "blobs"
            if (shared / SHARED_BLOBS).exists():
                roots.append(shared)
            break
    return roots


def _reason(error: Exception) -> str:
    """Return the system's own words for a failed open."""
    return getattr(error, "strerror", None) or str(error)
