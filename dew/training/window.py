"""`ProfileWindow`: some steps of a fit under jax's profiler, after the first ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dew.errors import InputRefused
from dew.telemetry import records
from dew.telemetry.profile import profile


@dataclass(frozen=True)
class ProfileWindow:
    """Asks for one trace a fit, of the loop and not of the compile.

    Once it is written the tracker gets a `dew.telemetry.records.ProfileWindow`.

    Args:
        directory: where the trace goes.
        warmup: steps of this fit before it, at least 1: the first one compiles.
        steps: how many are traced.

    Raises:
        InputRefused: a number below 1.
    """

    directory: str
    warmup: int = 5
    steps: int = 3

    def __post_init__(self) -> None:
        if self.warmup < 1 or self.steps < 1:
            raise InputRefused(
                f"a profile window of warmup={self.warmup}, steps={self.steps}: both count steps, "
                "from 1"
            )


class OpenWindow:
    """The window of one fit under way.

    Args:
        asked: what to trace, or None.
        tell: takes the record of what was written.
    """

    def __init__(
        self, asked: ProfileWindow | None, *, tell: Callable[[records.ProfileWindow], None]
    ):
        self._asked = asked
        self._tell = tell
        self._capture = None if asked is None else profile(asked.directory)
        self._made = 0

    def after_step(self, settle: Callable[[], None]) -> bool:
        """Count a step of this fit; begin or end the trace if that is due, and say whether it was.

        Args:
            settle: waits until every step so far is done.
        """
        if self._asked is None or self._capture is None:
            return False
        self._made += 1
        if self._made == self._asked.warmup:
            settle()
            self._capture.start()
            return True
        return self._made == self._asked.warmup + self._asked.steps and self.end(settle)

    def end(self, settle: Callable[[], None]) -> bool:
        """End a trace that is under way, its steps complete, tell of it, and say if there was."""
        if self._asked is None or self._capture is None or not self._capture.running:
            return False
        settle()
        self._capture.stop()
        traced = self._made - self._asked.warmup
        if traced:
            self._tell(records.ProfileWindow(str(self._asked.directory), traced))
        return True

    def cut(self) -> None:
        """End a trace that an error broke off, and tell nothing."""
        if self._capture is not None and self._capture.running:
            self._capture.stop()
