"""Showing a run in updates, which Hugging Face counts, where the trainer counts microbatches."""

from __future__ import annotations

from collections.abc import Mapping

from dew.training.progress import Progress


def in_updates(scalars: Mapping[str, float], accumulation: int) -> dict[str, float]:
    """Return a report of the trainer with the seconds of an update for those of a microbatch."""
    name = "train/step_seconds"
    changed = {name: scalars[name] * accumulation} if name in scalars else {}
    return {**scalars, **changed}


class UpdateProgress:
    """A `Progress` that shows another one's steps as updates.

    Args:
        inner: what shows them.
        accumulation: microbatches an update.
    """

    def __init__(self, inner: Progress, accumulation: int):
        self._inner, self._accumulation = inner, accumulation

    def start(self, step: int, steps: int) -> None:
        """The run begins at microbatch `step` of `steps`."""
        self._inner.start(step // self._accumulation, steps // self._accumulation)

    def phase(self, text: str) -> None:
        """Something other than a step is under way."""
        self._inner.phase(text)

    def advance(self, step: int, loss: float, rate: float) -> None:
        """Microbatch `step` was made."""
        self._inner.advance(step // self._accumulation, loss, rate)

    def report(self, scalars: Mapping[str, float], step: int, note: str = "") -> None:
        """Values were logged after microbatch `step`."""
        scalars = in_updates(scalars, self._accumulation)
        self._inner.report(scalars, step // self._accumulation, note)

    def close(self) -> None:
        """The run ended."""
        self._inner.close()
