"""`Trackers`: one report to several trackers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dew.tracking.tracker import ClosedOnExit, Tracker


class Trackers(ClosedOnExit):
    """Hands every report to each tracker, whether or not one before it failed.

    After all had theirs, the first failure is raised, the others noted on it.

    Args:
        *trackers: in the order in which they are told.
    """

    def __init__(self, *trackers: Tracker):
        self.trackers = trackers

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Log to all."""
        self._all(lambda tracker: tracker.log(scalars, step))

    def artifact(self, value: Any, step: int) -> None:
        """Give the artifact to all that take artifacts."""
        self._all(lambda tracker: _given(tracker, value, step))

    def close(self) -> None:
        """Close all."""
        self._all(lambda tracker: tracker.close())

    def _all(self, tell: Callable[[Tracker], None]) -> None:
        first: Exception | None = None
        for tracker in self.trackers:
            try:
                tell(tracker)
            except Exception as error:
                if first is None:
                    first = error
                else:
                    first.add_note(f"{type(tracker).__name__} failed too: {error}")
        if first is not None:
            raise first


def takes_artifacts(tracker: Any) -> bool:
    """Tell whether a tracker, or one of several, takes more than scalars."""
    if isinstance(tracker, Trackers):
        return any(takes_artifacts(one) for one in tracker.trackers)
    return callable(getattr(tracker, "artifact", None))


def _given(tracker: Any, value: Any, step: int) -> None:
    if takes_artifacts(tracker):
        tracker.artifact(value, step)
