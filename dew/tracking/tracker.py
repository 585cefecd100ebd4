"""The contract of a tracker, and how one closes when a run has already failed."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tracker(Protocol):
    """Takes a run's values. Whoever builds one closes it; a trainer only borrows it.

    One that takes scalars alone may leave `artifact` out, or raise TypeError there.
    """

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Take scalars by name, `train/...` or `val/...`."""
        ...

    def artifact(self, value: Any, step: int) -> None:
        """Take a record of `dew.telemetry.records`, or something to look at: `ImageGrid`, ...

        Raises:
            TypeError: it has no form here.
        """
        ...

    def close(self) -> None:
        """Write what is left and let go."""
        ...


class ClosedOnExit:
    """Closes a tracker at the end of a `with` block.

    Where the block failed and closing fails too, the block's exception is the one that is seen,
    and the other is a note on it.
    """

    on_disk = False
    """Whether reports only go to files here, so that no server can keep a run waiting."""

    def close(self) -> None:
        """Let go; trackers define it."""

    def __enter__(self) -> Any:
        """Return the tracker."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close, without hiding `error`."""
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"closing the tracker failed too: {failure}")
