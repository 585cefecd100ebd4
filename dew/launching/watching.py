"""Watching the processes of a pool: their output, their ends, and the end of all by the first."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dew.launching.environment import JOINED
from dew.launching.output import Failure, Stream, Telling
from dew.launching.plan import RANK, SRUN, SSH, Start

GRACE_SECONDS = 30.0
"""How long the others have after the first failure, or all of them after a signal."""

KILL_SECONDS = 5.0
"""From SIGTERM, which a process of a pool may outlive, to SIGKILL."""

UNHEARD_STATUS = 70
"""The status of a process that another one's failure ended: never the cause."""

PORT_TAKEN_STATUS = 75
"""The status of a rank 0 whose port another program holds."""

_TICK = 0.1
_DRAIN_SECONDS = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_IMPATIENT = 3
_END = "END"


@dataclass(frozen=True)
class Outcome:
    """How a pool ended.

    Args:
        status: 0, that of the first process to fail, or 128 and the number of the signal that
            stopped the launcher.
        cause: the failure that the status is of, or None.
    """

    status: int
    cause: Failure | None

    @property
    def port_taken(self) -> bool:
        """Whether rank 0 found its port taken and nothing has run yet."""
        said = self.cause.lines if self.cause is not None else ()
        return self.status == PORT_TAKEN_STATUS and any("PortTaken" in line for line in said)


@dataclass(eq=False)
class _Child:
    start: Start
    process: subprocess.Popen[bytes]
    ends: int | None = None
    status: int | None = None
    killed: bool = False
    stopped: bool = False
    streams: list[Stream] = field(default_factory=list)


class Watch:
    """Starts processes and stays with them until all have ended.

    Args:
        starts: what to start.
        grace: seconds from the first failure, or from a signal, until what is left is killed.
        orders: a file descriptor to read the names of signals from, or None.
    """

    def __init__(self, starts: Sequence[Start], grace: float, orders: int | None = None):
        self._starts = starts
        self._grace = grace
        self._orders = orders
        self._selector = selectors.DefaultSelector()
        self._children: list[_Child] = []
        self._telling = Telling()
        self._signals: list[int] = []
        self._passed = 0
        # When to send which signal to what is left.
        self._stages: list[tuple[float, int]] = []

    def run(self) -> Outcome:
        """Start all, wait for all, and say how it ended.

        SIGINT and SIGTERM go on to every rank. Whatever ends this call, no process is left.
        """
        before = _handle(self._signals)
        try:
            for start in self._starts:
                self._start(start)
            if self._orders is not None:
                self._selector.register(self._orders, selectors.EVENT_READ, "orders")
            while any(child.status is None for child in self._children):
                self._turn()
            self._drain()
            return self._outcome()
        finally:
            self._clear_away()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self, start: Start) -> None:
        environ = {**os.environ, **start.variables}
        environ.pop(JOINED, None)
        if start.kind == RANK:
            environ["DEW_LAUNCHER"] = str(os.getpid())
        process = subprocess.Popen(
            start.argv,
            env=environ,
            stdin=subprocess.PIPE if start.kind == SSH else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        child = _Child(start, process)
        self._children.append(child)
        for pipe, sink in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            stream = Stream(pipe.fileno(), sink, start, sink is sys.stderr, self._telling)
            child.streams.append(stream)
            self._selector.register(pipe.fileno(), selectors.EVENT_READ, stream)
        if hasattr(os, "pidfd_open"):
            child.ends = os.pidfd_open(process.pid)
            self._selector.register(child.ends, selectors.EVENT_READ, child)

    def _turn(self) -> None:
        ended: list[_Child] = []
        # epoll hands events over in the order in which they came, so ends too.
        for chosen, _ in self._selector.select(_TICK):
            if isinstance(chosen.data, Stream):
                self._read(chosen.data)
            elif isinstance(chosen.data, _Child):
                ended.append(chosen.data)
            else:
                self._take_orders()
        for child in [*ended, *self._children]:
            if child.status is None:
                self._look_at(child)
        self._pass_signals()
        if self._telling.failed:
            self._plan_the_end(self._grace, signal.SIGTERM)
        self._end_what_is_left()

    def _read(self, stream: Stream) -> None:
        if not stream.read():
            self._selector.unregister(stream.descriptor)

    def _look_at(self, child: _Child) -> None:
        # The ended process stays unreaped: its number must not name another group meanwhile.
        found = os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return
        died = found.si_code != os.CLD_EXITED
        child.status = 128 + found.si_status if died else found.si_status
        if child.ends is not None:
            self._selector.unregister(child.ends)
            os.close(child.ends)
        if child.status == 0 or child.killed:
            return
        for stream in child.streams:
            stream.read()
        self._name_the_stopped()
        self._telling.ended(child.start, _who(child), child.status)
        if child.status == PORT_TAKEN_STATUS:
            self._plan_the_end(0.0, signal.SIGTERM)

    def _name_the_stopped(self) -> None:
        """Take a rank that somebody stopped for the cause of what its peers met."""
        for child in self._children:
            if child.start.kind == RANK and child.status is None and not child.stopped:
                child.stopped = _letter(child) in ("T", "t")
                if child.stopped:
                    self._telling.stopped(child.start, _who(child))

    def _plan_the_end(self, grace: float, first: int) -> None:
        """Set when the rest is ended, unless that is set already."""
        if not self._stages:
            at = time.monotonic() + grace
            # A launcher elsewhere needs KILL_SECONDS itself, from SIGTERM to SIGKILL.
            elsewhere = any(child.start.kind == SSH for child in self._children)
            later = at + KILL_SECONDS * (2 if elsewhere else 1)
            self._stages = [(at, first), (later, signal.SIGKILL)]
            if first == signal.SIGKILL:
                self._stages = [(later if elsewhere else at, signal.SIGKILL)]

    def _end_what_is_left(self) -> None:
        if not self._stages or time.monotonic() < self._stages[0][0]:
            return
        stage = self._stages.pop(0)[1]
        self._telling.ending = True
        for child in self._children:
            if child.status is None:
                number = signal.SIGKILL if child.stopped else stage
                if number == signal.SIGKILL:
                    child.killed = True
                    self._telling.note(f"{_who(child)} is still there; killed")
                elif child.start.kind == SSH:
                    self._order(child, _END)
                    continue
                self._send(child, number)

    def _send(self, child: _Child, number: int) -> None:
        if child.start.kind == SSH and number != signal.SIGKILL:
            self._order(child, signal.Signals(number).name)
        elif number == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, number)
        elif child.status is None:
            # Not to its group: a loader's workers are needed while the rank saves.
            child.process.send_signal(
                # srun answers SIGINT with a report of its tasks.
                signal.SIGTERM if child.start.kind == SRUN else number
            )

    def _order(self, child: _Child, word: str) -> None:
        """Tell a launcher elsewhere what to do, on its standard input."""
        pipe = child.process.stdin
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.write(f"{word}\n".encode())
            pipe.flush()

    def _pass_signals(self) -> None:
        while self._passed < len(self._signals):
            # A closed terminal is no reason to lose what was learned.
            number = self._signals[self._passed]
            number = signal.SIGTERM if number == signal.SIGHUP else number
            self._passed += 1
            if self._passed >= _IMPATIENT:
                self._stages = [(0.0, signal.SIGKILL)]
                continue
            if self._orders is None:
                name = signal.Signals(number).name
                self._telling.note(f"{name}: all ranks may save and leave, for {self._grace:g} s")
            for child in self._children:
                if child.status is None:
                    self._send(child, number)
            self._plan_the_end(self._grace, signal.SIGKILL)

    def _take_orders(self) -> None:
        assert self._orders is not None
        text = os.read(self._orders, 4096).decode()
        if not text:
            self._selector.unregister(self._orders)
        for name in text.split() or ["SIGTERM"]:
            if name == _END:
                self._plan_the_end(0.0, signal.SIGTERM)
            with contextlib.suppress(KeyError):
                self._signals.append(signal.Signals[name])

    def _drain(self) -> None:
        """Read what is left, but not for ever: a child of a rank may hold its pipe open."""
        until = time.monotonic() + _DRAIN_SECONDS
        streams = [stream for child in self._children for stream in child.streams]
        while any(stream.open for stream in streams) and time.monotonic() < until:
            for chosen, _ in self._selector.select(_TICK):
                if isinstance(chosen.data, Stream):
                    self._read(chosen.data)
        for stream in streams:
            stream.finish()

    def _outcome(self) -> Outcome:
        stop = self._signals[0] if self._signals else None
        cause = self._telling.cause(consequences=(UNHEARD_STATUS,), stopped=stop is not None)
        if cause is not None:
            return Outcome(cause.status, cause)
        if stop is not None and any(child.status for child in self._children):
            return Outcome(128 + (signal.SIGTERM if stop == signal.SIGHUP else stop), None)
        return Outcome(0, None)

    def _clear_away(self) -> None:
        """End what a failed pool, or an error of the launcher itself, leaves behind."""
        for child in self._children:
            if child.status != 0:
                self._send(child, signal.SIGKILL)
            child.process.wait()
            for pipe in (child.process.stdin, child.process.stdout, child.process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._selector.close()


def _handle(signals: list[int]) -> Mapping[int, Any]:
    """Have signals noted in `signals`, and return the handlers there were before."""
    before = {}
    for number in _SIGNALS:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # started by nohup
        with contextlib.suppress(ValueError):  # on a thread other than the main one
            before[number] = signal.signal(number, lambda got, _: signals.append(got))
    return before


def _who(child: _Child) -> str:
    return f"{child.start.name} ({socket.gethostname()}:{child.process.pid})"


def _letter(child: _Child) -> str:
    """Return the letter that the kernel has for what a process is doing, if it says so."""
    try:
        with open(f"/proc/{child.process.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
