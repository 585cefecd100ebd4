"""Checkpoints that are Hugging Face folders too: the weights beside `dew/`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dew.checkpoints import Checkpoints

KEEP_ALL = 2**31


class RunCheckpoints(Checkpoints):
    """`Checkpoints` whose every folder also loads in transformers.

    Args:
        directory: the run's output folder.
        keep: how many stay; None keeps all.
        write: `write(params, folder)` adds the model's files, before the folder gets its name.

    Attributes:
        describe: `describe(step, folder)` adds the trainer's state; nothing by default.
    """

    _extra_fields = ("params",)

    def __init__(self, directory: str, *, keep: int | None, write: Callable[[Any, Path], None]):
        super().__init__(directory, keep=KEEP_ALL if keep is None else keep)
        self.describe: Callable[[int, Path], None] = lambda step, folder: None
        self._write_model = write

    def _write_extra(self, step: int, state: Any, folder: Path) -> None:
        self._write_model(state.params["params"], folder)
        self.describe(step, folder)
