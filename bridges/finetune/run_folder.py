"""The folder of one run: its lock, its settings, its results, and when it is finished."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bridges.files.json_file import read_json
from dew.errors import InputRefused, listed, shown

CONFIG = "config.yaml"
STATE = "trainer_state.json"
LOG = "log.jsonl"
HIDDEN = ".dew"
LOCK = "lock"


@contextlib.contextmanager
def locked(folder: Path, run: str) -> Iterator[None]:
    """Hold the run's lock: a second run on the folder is refused, a stale lock named and taken.

    The lock is the kernel's, so it ends with the process, however that ends; the file's content
    only says who holds it.

    Raises:
        InputRefused: another process holds it.
    """
    path = folder / HIDDEN / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _acquire(path)
    try:
        left = os.read(descriptor, 4096)
        if left:
            print(f"taking over the lock of {_holder(left)}, which is gone", file=sys.stderr)
        who = {"pid": os.getpid(), "host": socket.gethostname(), "run": run, "since": time.time()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(who).encode(), 0)
        yield
        path.unlink(missing_ok=True)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _acquire(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A holder unlinks the file before it lets go: then ours has no name any more.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            left = os.read(descriptor, 4096)
            os.close(descriptor)
            raise InputRefused(
                f"{path.parent.parent} is in use by {_holder(left)}; wait for it, stop it, "
                "or choose another output_dir"
            ) from None
        os.close(descriptor)


def is_running(folder: Path) -> bool:
    """Tell whether a process of this machine that still lives holds the run's lock.

    The lock is not tried: a run that began in that moment would find it taken.
    """
    try:
        who = json.loads((folder / HIDDEN / LOCK).read_bytes())
        if who["host"] != socket.gethostname():
            return False
        os.kill(int(who["pid"]), 0)
    except PermissionError:  # it lives, and is another user's
        return True
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return False
    return True


def _holder(content: bytes) -> str:
    try:
        who = json.loads(content)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(who["since"])))
        return (
            f"process {int(who['pid'])} on {shown(who['host'])[1:-1]} "
            f"(run {shown(who['run'])}, since {since})"
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return "another process"


def check_folder(folder: Path, source: str) -> None:
    """Refuse an output folder that holds something else than a run.

    Raises:
        InputRefused: it is a file, it is the model that is read, or it holds files but no run.
    """
    if folder.exists() and not folder.is_dir():
        raise InputRefused(f"output_dir {folder} is a file; name a folder")
    if not folder.exists():
        return
    if Path(source).exists() and folder.resolve() in (
        Path(source).resolve(),
        Path(source).resolve().parent,
    ):
        raise InputRefused(
            f"output_dir {folder} is where the model is read from; choose another folder, "
            "so that the model stays as it is"
        )
    held = [entry.name for entry in folder.iterdir() if entry.name not in (HIDDEN, CONFIG, LOG)]
    if held and not (folder / CONFIG).exists():
        raise InputRefused(
            f"output_dir {folder} holds {shown(sorted(held)[:3])} but no {CONFIG} of a run; "
            "choose an empty folder or a new name"
        )


def check_same_run(before: Mapping[str, Any], now: Mapping[str, Any], free: frozenset[str]) -> None:
    """Refuse to go on with a run under other settings than it began with.

    Args:
        before: the settings in the folder.
        now: this call's.
        free: names that may differ.

    Raises:
        InputRefused: one line for each setting that differs.
    """
    differing = [
        f"{name}: was {shown(before.get(name))}, now {shown(now.get(name))}"
        for name in sorted({*before, *now})
        if name not in free and _plain(before.get(name)) != _plain(now.get(name))
    ]
    if differing:
        raise InputRefused(
            listed(
                "this output_dir holds a run with other settings; choose another folder, "
                "or give these as they were:",
                differing,
            )
        )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def finished_updates(folder: Path) -> int | None:
    """Return the updates of a finished run, or None while there is none."""
    results = folder / "train_results.json"
    if not results.exists() or not (folder / STATE).exists():
        return None
    step = read_json(folder / STATE).get("global_step")
    return step if isinstance(step, int) else None
