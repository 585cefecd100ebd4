"""The lock of a run's folder: one run at a time saves into it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import socket
import uuid
import warnings
import weakref
from pathlib import Path
from typing import Any

from dew.errors import InputRefused, shown

NAME = ".lock"

# What a file system says that knows no hard links.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

_RUN = uuid.uuid4().hex[:12]
_held: dict[Path, int] = {}


class Lock:
    """Held from its making until `release`, the end of its object or the end of the process.

    Objects of one process share a folder's lock. A lock that a dead process of this host left
    is taken over with a warning that names it.

    Args:
        directory: the folder; made where it is not there.

    Raises:
        InputRefused: another run holds it.
        OSError: the lock could not be written.
    """

    def __init__(self, directory: Path):
        self._path = directory / NAME
        if self._path not in _held:
            directory.mkdir(parents=True, exist_ok=True)
            _acquire(self._path)
        _held[self._path] = _held.get(self._path, 0) + 1
        # Also at the end of the process; after a fork the child has none to release.
        self._release = weakref.finalize(self, _released, self._path, os.getpid())

    def release(self) -> None:
        """Give the folder free."""
        self._release()


def _acquire(path: Path) -> None:
    for _ in range(3):
        try:
            _create(path)
            return
        except FileExistsError:
            holder = _holder(path)
        if holder is None:
            continue  # released in between
        if not _is_gone(holder):
            raise InputRefused(_refusal(path, holder))
        if _taken_away(path, holder):
            warnings.warn(
                f"{path.parent}: taking over from run {shown(holder.get('run'), 40)}, process "
                f"{holder['pid']} on {shown(holder['host'], 80)}, which ended without giving it "
                "free.",
                stacklevel=6,
            )
    raise InputRefused(f"{path} changes hands all the time: more than one run wants this folder.")


def _refusal(path: Path, holder: dict[str, Any]) -> str:
    host = shown(holder.get("host"), 80)
    elsewhere = holder.get("host") != socket.gethostname()
    blind = "from this machine nobody can see whether it still runs. " if elsewhere else ""
    return (
        f"{path.parent} is in use by run {shown(holder.get('run'), 40)}, process "
        f"{shown(holder.get('pid'), 20)} on {host}: two runs may not save into one folder. {blind}"
        f"Wait for it or pass another directory. If no run on {host} saves there any more, remove "
        f"its lock and start again: rm {shlex.quote(str(path))}"
    )


def _create(path: Path) -> None:
    """Put the whole lock there in one act, or raise FileExistsError."""
    ours = {"run": _RUN, "pid": os.getpid(), "host": socket.gethostname(), "born": _born()}
    text = json.dumps(ours) + "\n"
    # A fork has this run's name too.
    draft = path.with_name(f"{NAME}.{_RUN}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            # An empty lock, after a power loss, would name nobody and stay.
            os.fsync(file.fileno())
        os.link(draft, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()


def _taken_away(path: Path, holder: dict[str, Any]) -> bool:
    """Remove a dead run's lock; False where another run was faster, and its lock stays."""
    away = path.with_name(f"{NAME}.{_RUN}.{os.getpid()}.dead")
    try:
        os.rename(path, away)
    except FileNotFoundError:
        return False
    same = _holder(away) == holder
    if not same:
        with contextlib.suppress(FileExistsError):
            os.link(away, path)
    away.unlink()
    return same


def _holder(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _is_gone(holder: dict[str, Any]) -> bool:
    """Tell whether the holder was a process of this host and is dead for certain."""
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or type(pid) is not int or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    # Numbers of processes are used again: the time of its start tells another one.
    born = holder.get("born")
    return born is not None and born != _born(pid)


def _born(pid: int | str = "self") -> str | None:
    """Return when a process started: the boot, and ticks since it; None where unknown."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return f"{boot}:{state.rpartition(')')[2].split()[19]}"


def _released(path: Path, owner: int) -> None:
    if owner != os.getpid() or path not in _held:
        return
    _held[path] -= 1
    if not _held[path]:
        del _held[path]
        with contextlib.suppress(OSError):
            path.unlink()
