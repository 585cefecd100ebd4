"""What ranks say: every line with its rank's name, the last lines kept for the end."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from dew.launching.plan import RANK, SRUN, Start

KEPT_LINES = 30
"""How many of a rank's last lines on stderr are shown again at the end."""

_LONGEST = 1 << 16
_READS = 16
_RANK_LINE = re.compile(r"\[rank(\d+)\]: ")
_TASK_LINE = re.compile(r" *(\d+): ?")
_ENDED = re.compile(r"dew launch: (rank \d+ \(\S+\)) ended with status (\d+)")
_TASK_ENDED = re.compile(r"srun: error: (\S+): tasks? (\d+)\S*: (?:Exited with exit code (\d+)|.*)")
_STOPPED = (130, 143)


@dataclass(frozen=True)
class Failure:
    """A process that ended with another status than 0.

    Args:
        who: "rank 1 (host:pid)".
        status: as a shell gives it.
        lines: the last it said on stderr.
    """

    who: str
    status: int
    lines: Sequence[str]

    def __str__(self) -> str:
        """Return what stands last on the screen."""
        what = "was stopped" if self.status in _STOPPED else "failed"
        head = f"dew launch: {self.who} {what} first, with {status_text(self.status)}"
        if not self.lines:
            return f"{head}; it said nothing"
        return "\n".join([f"{head}; the last it said:", *self.lines])


def status_text(status: int) -> str:
    """Return `status 137 (SIGKILL)`."""
    try:
        return f"status {status} ({signal.Signals(status - 128).name})"
    except ValueError:
        return f"status {status}"


class Telling:
    """Keeps each rank's last words and the failures in the order in which they came.

    Attributes:
        ending: whether what is left has been told to end; what it says then explains nothing.
    """

    def __init__(self) -> None:
        self._words: dict[str, deque[str]] = {}
        self._failures: list[tuple[str, int, str]] = []
        self.ending = False

    def note(self, text: str) -> None:
        """Say something of the launcher's own."""
        print(f"dew launch: {text}", file=sys.stderr, flush=True)

    def heard(self, source: str, line: str) -> None:
        """Keep a line of stderr from `source`, as `rank 1`, unless it answers the end of all."""
        if not self.ending:
            self._words.setdefault(source, deque(maxlen=KEPT_LINES)).append(line)

    def ended(self, start: Start, who: str, status: int) -> None:
        """Take note that a process of this machine ended with a status other than 0."""
        if start.kind == RANK:
            self.note(f"{who} ended with {status_text(status)}")
        elif any(source.startswith("rank ") for _, _, source in self._failures):
            return  # its ranks' own ends were told
        self._failures.append((who, status, start.name))

    def stopped(self, start: Start, who: str) -> None:
        """Take note of a process that does not run, which its peers do not outlive."""
        self.note(f"{who} is stopped (SIGSTOP); its peers have given it up")
        self._failures.append((who, 128 + signal.SIGSTOP, start.name))

    @property
    def failed(self) -> bool:
        """Whether a process has failed, here or elsewhere."""
        return bool(self._failures)

    def ended_elsewhere(self, line: str) -> None:
        """Take note of what a launcher on another machine, or srun, says of a rank's end."""
        if told := _ENDED.match(line):
            self._failures.append((told[1], int(told[2]), told[1].partition(" (")[0]))
        elif told := _TASK_ENDED.match(line):
            status = int(told[3]) if told[3] else 128 + signal.SIGKILL
            self._failures.append((f"rank {told[2]} ({told[1]})", status, f"rank {told[2]}"))

    def cause(self, *, consequences: Sequence[int], stopped: bool) -> Failure | None:
        """Return the failure that came first and was no answer to another or to a signal.

        Args:
            consequences: statuses of processes that ended since another one failed.
            stopped: whether a signal asked all to end.
        """
        passed = _STOPPED if stopped else ()
        told = [failure for failure in self._failures if failure[1] not in passed]
        first = [failure for failure in told if failure[1] not in consequences] or told
        if not first:
            return None
        who, status, source = first[0]
        return Failure(who, status, tuple(self._words.get(source, ())))


class Stream:
    """One stream of one process, passed on line by line.

    Args:
        descriptor: where to read, without blocking.
        sink: where it goes.
        start: whose it is.
        kept: whether its last lines are kept.
        telling: who keeps them.
    """

    def __init__(self, descriptor: int, sink: TextIO, start: Start, kept: bool, telling: Telling):
        self.descriptor = descriptor
        self.open = True
        self._sink = sink
        self._start = start
        self._kept = kept
        self._telling = telling
        self._rest = b""

    def read(self) -> bool:
        """Pass on what there is, and return whether more may come."""
        # Bounded: a process that writes all the time must not keep the others from being seen.
        for _ in range(_READS if self.open else 0):
            try:
                got = os.read(self.descriptor, _LONGEST)
            except BlockingIOError:
                return True
            if not got:
                self.open = False
                break
            *lines, self._rest = (self._rest + got).split(b"\n")
            if len(self._rest) > _LONGEST:
                lines, self._rest = [*lines, self._rest], b""
            self._pass_on(lines)
        return self.open

    def finish(self) -> None:
        """Pass on a last line that has no end."""
        if self._rest:
            self._pass_on([self._rest])
            self._rest = b""

    def _pass_on(self, lines: Sequence[bytes]) -> None:
        told = [self._named(line.decode(errors="replace")) for line in lines]
        if told:
            self._sink.write("".join(f"{line}\n" for line in told))
            self._sink.flush()

    def _named(self, line: str) -> str:
        """Return the line with its rank's name in front; keep it if it is one to keep."""
        source = self._start.name
        if self._start.kind == RANK:
            line = f"[rank{self._start.rank}]: {line}"
        elif self._start.kind == SRUN and (task := _TASK_LINE.match(line)):
            source = f"rank {task[1]}"
            line = f"[rank{task[1]}]: {line[task.end() :]}"
        elif found := _RANK_LINE.match(line):
            source = f"rank {found[1]}"
        elif self._kept:
            self._telling.ended_elsewhere(line)
        if self._kept:
            self._telling.heard(source, line)
        return line
