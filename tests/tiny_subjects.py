"""Tiny random checkpoints as subjects of parity's checks, written when they are first wanted."""

from __future__ import annotations

from pathlib import Path

from parity import reference, tiny
from parity.subject import Subject


class TinySubjects(dict[str, Subject]):
    """Subjects by the names of `parity.tiny.MODELS`.

    Args:
        folder: where their checkpoints are written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        reference.run_alone()

    def __missing__(self, name: str) -> Subject:
        self[name] = tiny.subject(name, self.folder, seed=0)
        return self[name]
