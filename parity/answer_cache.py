"""Answers of the reference, kept by all that they follow from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from parity.message import message_size

ROOM = 1 << 30
"""How many bytes all kept answers may take together; the longest unused go first."""
LARGEST = 1 << 26
"""How many bytes one may take: whole sets of weights are as quickly computed as read."""


class AnswerCache:
    """A folder of messages.

    Args:
        folder: where; made when something is kept.
        room: how many bytes all of them may take.
    """

    def __init__(self, folder: Path, *, room: int = ROOM) -> None:
        self._folder = folder
        self._room = room

    def find(self, key: str) -> Path | None:
        """Return the folder of the answer of a key, or None."""
        kept = self._folder / key
        if not kept.is_dir():
            return None
        os.utime(kept)
        return kept

    def keep(self, key: str, answer: Path) -> Path:
        """Take an answer's folder in, unless it is large, and return where it is now."""
        if message_size(answer) > min(LARGEST, self._room):
            return answer
        kept, aside = self._folder / key, self._folder / f".{key}.{os.getpid()}"
        self._folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(answer, aside)
        try:
            # Renamed when it is whole: another process may be looking.
            aside.rename(kept)
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)
        self._make_room(kept)
        return kept if kept.is_dir() else answer

    def _make_room(self, newest: Path) -> None:
        sizes = {path: _size(path) for path in self._folder.iterdir() if path != newest}
        left = self._room - _size(newest)
        for path in sorted(sizes, key=_used, reverse=True):
            left -= sizes[path]
            if left < 0:
                shutil.rmtree(path, ignore_errors=True)


def answer_key(
    check: str,
    files: Mapping[str, str],
    inputs: str,
    *,
    facts: str,
    packages: Sequence[str],
) -> str:
    """Return the name of an answer: a digest of all that it follows from.

    Args:
        check: where the check lives.
        files: sha256 by name of the checkpoint's files; none for a check without one.
        inputs: the digest of what both sides get.
        facts: what else the reference is told.
        packages: whose versions it follows from.
    """
    versions = {name: version(name) for name in sorted(packages)}
    told: list[Any] = [check, dict(files), inputs, facts, versions, _program()]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@cache
def _program() -> str:
    """Return a digest of parity's own source, the version of every check."""
    digest = hashlib.sha256(version("dew").encode())
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return message_size(path)
    except OSError:
        return 0
