"""SIGINT and SIGTERM while a run trains: finish the step, save, then leave with their status."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

_WATCHED = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """A run that a signal ended after its checkpoint landed.

    As a `SystemExit` it ends a script with the status a shell expects and without a traceback.

    Attributes:
        code: 130 after SIGINT, 143 after SIGTERM.
        step: the microbatches that the state holds.
        saved: the checkpoint's folder, or None where the run keeps none.
    """

    def __init__(self, number: int, *, step: int, saved: str | None):
        self.status = 128 + number
        self.step = step
        self.saved = saved
        super().__init__(self.status)

    def __str__(self) -> str:
        """Return what ended the run, what was saved, and how to go on."""
        name = signal.Signals(self.status - 128).name
        if self.saved is None:
            return f"{name} at step {self.step}; this run keeps no checkpoints, nothing was saved."
        return f"{name} at step {self.step}; saved {self.saved}. Run the same again to go on."


class StopRequested(Exception):
    """Raised inside an evaluation to leave it early; never leaves the trainer."""


class Signals:
    """Watches for SIGINT and SIGTERM between enter and exit, on the main thread only.

    The first one is remembered for the loop to see. A second SIGINT leaves at once: the process
    ends with status 130, or in an interactive session `KeyboardInterrupt` is raised.

    Attributes:
        number: the first signal's number, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in _WATCHED:
                self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None is a handler that C installed; Python cannot put it back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def check(self) -> None:
        """Leave the work at hand if a signal came.

        Raises:
            StopRequested: one did.
        """
        if self.number is not None:
            raise StopRequested

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            return
        if number == signal.SIGINT:
            if hasattr(sys, "ps1") or "ipykernel" in sys.modules:
                raise KeyboardInterrupt
            os._exit(130)
