"""What a disk may hold after a power loss: a model of files and folders, fed with recorded calls.

The rule is POSIX's, and no file system's: a file's bytes are there for certain once the file has
been synced, and a name once its folder has been. What was not synced is there or is not.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class _Node:
    """A file or a folder, as programs see it and as it is on disk for certain."""

    is_folder: bool
    now: dict = field(default_factory=dict)
    kept: dict = field(default_factory=dict)
    bytes_now: bytearray = field(default_factory=bytearray)
    bytes_kept: bytes = b""

    def sync(self) -> None:
        self.kept, self.bytes_kept = dict(self.now), bytes(self.bytes_now)


class Disk:
    """The tree below `root`, all of it on disk when the record begins."""

    def __init__(self, root: Path):
        self.root = root
        self.nodes: dict[int, _Node] = {}
        self.top = self._read(root)

    def _read(self, path: Path) -> int:
        inode = path.lstat().st_ino
        node = self.nodes[inode] = _Node(path.is_dir())
        if node.is_folder:
            node.now = {below.name: self._read(below) for below in path.iterdir()}
        else:
            node.bytes_now = bytearray(path.read_bytes())
        node.sync()
        return inode

    def apply(self, line: str) -> None:
        """Make one recorded call."""
        call, inode, one, two = line.split("\t")
        number = int(inode)
        if call == "sync":
            self.nodes[number].sync()
        elif call == "write":
            where, data = int(one), bytes.fromhex(two)
            content = self.nodes[number].bytes_now
            content.extend(bytes(max(0, where - len(content))))
            content[where : where + len(data)] = data
        elif call == "cut":
            content = self.nodes[number].bytes_now
            del content[int(one) :]
            content.extend(bytes(int(one) - len(content)))
        elif call == "unlink":
            folder, name = self._place(one)
            del folder.now[name]
        elif call in ("rename", "link"):
            folder, name = self._place(one)
            moved = folder.now.pop(name) if call == "rename" else folder.now[name]
            folder, name = self._place(two)
            folder.now[name] = moved
        else:
            self._open(call, number, one)

    def _open(self, call: str, inode: int, path: str) -> None:
        folder, name = self._place(path)
        if folder.now.get(name) != inode:
            # A number that was given free names another file now.
            self.nodes[inode] = _Node(call == "mkdir")
            folder.now[name] = inode
        if call == "empty":
            self.nodes[inode].bytes_now.clear()

    def _place(self, path: str) -> tuple[_Node, str]:
        node = self.nodes[self.top]
        *folders, name = os.path.relpath(path, self.root).split("/")
        for folder in folders:
            node = self.nodes[node.now[folder]]
        return node, name

    def write_out(self, target: Path, lost: Lost) -> None:
        """Put there what a power loss now would leave."""
        self._write(self.top, target, lost)

    def _write(self, inode: int, target: Path, lost: Lost) -> None:
        node = self.nodes[inode]
        if not node.is_folder:
            synced = node.bytes_now == node.bytes_kept
            now, kept = node.bytes_now, node.bytes_kept
            target.write_bytes(kept if synced else lost.content(now, kept))
            return
        target.mkdir()
        for name in sorted({*node.now, *node.kept}):
            found = lost.entry(node.now.get(name), node.kept.get(name))
            if found is not None:
                self._write(found, target / name, lost)


@dataclass(frozen=True)
class Lost:
    """Which of what was not synced is lost.

    Attributes:
        entry: of a name's node now and the synced one, each or None, the one that is there.
        content: of a file's bytes now and the synced ones, those that are there.
    """

    entry: Callable[[int | None, int | None], int | None]
    content: Callable[[bytearray, bytes], bytes]


def _some(seed: int) -> Lost:
    draw = random.Random(seed)
    return Lost(
        lambda now, kept: draw.choice((now, kept)),
        lambda now, kept: draw.choice((bytes(now), kept, bytes(now[: len(now) // 2]))),
    )


NOTHING = Lost(lambda now, _: now, lambda now, _: bytes(now))
EVERYTHING = Lost(lambda _, kept: kept, lambda _, kept: kept)
BYTES = Lost(lambda now, _: now, lambda _, kept: kept)


def after_losses(disk: Disk, record: list[str], base: Path) -> Iterator[tuple[int, Path]]:
    """Yield how many calls were made, and a tree that is left when the power goes just then.

    Of each moment four: all that was not synced is lost, only bytes are, and two draws.
    """
    for made in range(len(record) + 1):
        if made:
            disk.apply(record[made - 1])
        for number, lost in enumerate((EVERYTHING, BYTES, _some(made), _some(-made - 1))):
            left = base / f"{made}-{number}"
            disk.write_out(left, lost)
            yield made, left
