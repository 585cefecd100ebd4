"""How all processes of a pool stop, or save out of turn, after the same step."""

from __future__ import annotations

import itertools

from dew.artifacts.coordination import pool_size, pooled, put, rank, under

_fits = itertools.count()


class Steering:
    """Turns a signal or a wish that one process heard into a step that all will act after.

    Nobody waits: each process writes the step it is at when it first sees the wish, and goes on;
    all act `lead` steps after the largest of these. No process can be further ahead than that,
    since a step ends only when all have started it. Alone in the pool, a process acts at once.

    Args:
        lead: more steps than one process can be ahead of another.
    """

    def __init__(self, lead: int):
        self._lead = lead
        self._directory = f"dew/steering/{next(_fits)}/"
        self._voted = False
        self._wishes = 0
        self.number: int | None = None
        self.stop_after: int | None = None
        self._save_after: set[int] = set()

    def steer(self, step: int, signal_number: int | None, *, wish: bool) -> None:
        """Tell the pool what this process heard, and hear what the others did.

        Args:
            step: steps this process has started.
            signal_number: the signal that asked it to stop, or None.
            wish: whether it was asked to save; process 0 is who is asked.
        """
        if not pooled():
            if signal_number is not None:
                self.number, self.stop_after = signal_number, step
            if wish:
                self._save_after.add(step)
            return
        if wish:
            put(f"{self._directory}save/{self._wishes}", str(step + self._lead))
            self._wishes += 1
        if signal_number is not None and self.number is None:
            put(f"{self._directory}stop", str(signal_number))
        self._hear(step)

    def saves_after(self, step: int) -> bool:
        """Tell whether a save was asked for after this step."""
        return step in self._save_after

    def _hear(self, step: int) -> None:
        found = under(self._directory)
        self._save_after |= {int(v) for key, v in found.items() if key.startswith("save/")}
        if "stop" not in found:
            return
        self.number = int(found["stop"])
        if not self._voted:
            put(f"{self._directory}vote/{rank()}", str(step))
            found["vote/" + str(rank())] = str(step)
            self._voted = True
        votes = [int(value) for key, value in found.items() if key.startswith("vote/")]
        if len(votes) == pool_size():
            self.stop_after = max(votes) + self._lead
