"""Files that a kill or a full disk leaves whole: the old content or the new."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON by `write_atomic`; folders are made.

    Raises:
        ValueError: a number that is not finite, which JSON cannot hold.
        OSError: it could not be written; the file is as it was.
    """
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a file aside, flush it to the disk and rename it: the old one or the new one, whole."""
    data = data.encode() if isinstance(data, str) else data
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
