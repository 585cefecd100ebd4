"""How a fit reports: no tracker stops it, slows it, or costs another its reports."""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dew.telemetry.records import Record
from dew.tracking import LocalTracker, Tracker, Trackers
from dew.tracking.trackers import takes_artifacts

SHARE = 0.01
"""The part of a fit's time that it waits for a tracker that does not answer."""

FIRST_WAIT = 1.0
"""Seconds it waits in any case, however short the fit."""

PATIENCE = 60.0
"""Seconds that a report may be under way before its tracker counts as not answering."""

UNREPORTED = "unreported"


class TrackerWarning(UserWarning):
    """A tracker failed or does not answer; the fit goes on, and its reports are kept."""


@dataclass(frozen=True, eq=False)
class _Report:
    """Scalars, or an artifact, for one step."""

    step: int
    value: Any
    scalars: bool

    def send(self, tracker: Any) -> None:
        if self.scalars:
            tracker.log(self.value, self.step)
        else:
            tracker.artifact(self.value, self.step)


class Reporting:
    """Brings a fit's reports to its tracker, or to each of its `Trackers`.

    A report is delivered before the call returns. Where a tracker raises, the report is kept in
    a local journal instead and the next is tried again. Where one that reaches for a server does
    not answer, the fit waits for SHARE of its time in all, goes on, and delivers in order once
    the tracker answers; what it never took is in the journal. A tracker that failed, or did not
    answer for PATIENCE, is one `TrackerWarning`, which says where its reports are.

    Args:
        tracker: what the trainer was given, or None.
        directory: where the journal goes, in a folder `unreported`; None makes a temporary one.
    """

    def __init__(self, tracker: Tracker | None, directory: str | Path | None = None):
        self._started = time.monotonic()
        self._kept = _Kept(directory)
        self._lanes = [self._lane(one) for one in _each(tracker)]
        self.warned: Warning | None = None

    @property
    def previews(self) -> bool:
        """Whether any tracker takes more than scalars."""
        return any(lane.takes_artifacts for lane in self._lanes)

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Report scalars to every tracker."""
        self._tell(_Report(step, dict(scalars), scalars=True))

    def artifact(self, value: Any, step: int) -> None:
        """Report a record or a preview to every tracker that takes such."""
        self._tell(_Report(step, value, scalars=False))

    def close(self, *, at_once: bool = False) -> None:
        """Deliver what is under way, for as long as PATIENCE or `at_once`; keep the rest."""
        for lane in self._lanes:
            lane.finish(0.0 if at_once else PATIENCE)
            self._settle(lane)

    def _tell(self, report: _Report) -> None:
        for lane in self._lanes:
            if report.scalars or lane.takes_artifacts:
                lane.tell(report, self._allowance())
                self._settle(lane)

    def _settle(self, lane: _Lane) -> None:
        """Keep what the lane could not deliver, and warn of its first trouble."""
        undelivered, trouble = lane.taken_stock()
        for report in undelivered:
            self._kept.keep(report)
        if trouble is not None and not lane.warned:
            lane.warned = True
            self._warn(lane.name, trouble)

    def _warn(self, name: str, trouble: str | BaseException) -> None:
        text = trouble if isinstance(trouble, str) else f"{type(trouble).__name__}: {trouble}"
        try:
            warnings.warn(
                f"{name} {text}. Training goes on; reports that it does not take are kept in "
                f"{self._kept.directory}.",
                TrackerWarning,
                stacklevel=2,
            )
        except TrackerWarning as error:
            # A filter makes it an error; the run ends whole first.
            self.warned = self.warned or error

    def _allowance(self) -> float:
        return max(FIRST_WAIT, SHARE * (time.monotonic() - self._started))

    def _lane(self, tracker: Any) -> _Lane:
        return _Lane(tracker) if getattr(tracker, "on_disk", False) else _WatchedLane(tracker)


class _Lane:
    """The way to one tracker that writes to this machine's disk.

    Attributes:
        warned: whether its user was told that it is in trouble.
    """

    def __init__(self, tracker: Any):
        self.name = type(tracker).__name__
        self.takes_artifacts = takes_artifacts(tracker)
        self.warned = False
        self._tracker = tracker
        self._refused: set[type] = set()
        self._undelivered: list[_Report] = []
        self._trouble: str | BaseException | None = None
        self._lock = threading.RLock()

    def tell(self, report: _Report, allowance: float) -> None:
        """Deliver a report."""
        self._send(report)

    def finish(self, patience: float) -> None:
        """Leave nothing under way."""

    def taken_stock(self) -> tuple[list[_Report], str | BaseException | None]:
        """Return what was not delivered since last asked, and what is wrong, if anything."""
        with self._lock:
            undelivered, self._undelivered = self._undelivered, []
            return undelivered, self._trouble

    def _send(self, report: _Report) -> None:
        kind = type(report.value)
        if not report.scalars and kind in self._refused:
            return
        try:
            report.send(self._tracker)
        except Exception as error:
            if isinstance(error, TypeError) and not report.scalars:
                # It has no form there: nothing is lost that the tracker could have taken.
                self._refused.add(kind)
                if isinstance(report.value, Record):
                    return
            with self._lock:
                self._undelivered.append(report)
                self._trouble = self._trouble or error


class _WatchedLane(_Lane):
    """The way to a tracker that may keep its caller waiting: its calls are made on a thread."""

    def __init__(self, tracker: Any):
        super().__init__(tracker)
        self._queue: queue.SimpleQueue[_Report | None] = queue.SimpleQueue()
        self._waiting: deque[_Report] = deque()
        self._answered = threading.Condition(self._lock)
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None
        self._abandoned = False
        self._lost = 0.0

    def tell(self, report: _Report, allowance: float) -> None:
        """Hand a report over and wait until it is delivered, within what is left of `allowance`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._deliver, name=self.name, daemon=True)
            self._thread.start()
        with self._lock:
            if not self._waiting:
                self._asked_at = time.monotonic()
            self._waiting.append(report)
        self._queue.put(report)
        self._wait(max(0.0, allowance - self._lost))

    def finish(self, patience: float) -> None:
        """Wait until all is delivered, unless it is known not to answer; give up what is not."""
        if self._thread is None:
            return
        self._wait(0.0 if self._trouble else patience)
        with self._lock:
            self._abandoned = True
            if self._waiting:
                self._trouble = self._trouble or "did not answer before the fit ended"
            self._undelivered += self._waiting
            self._waiting.clear()
        self._queue.put(None)

    def _wait(self, seconds: float) -> None:
        began = time.monotonic()
        with self._lock:
            if self._answered.wait_for(lambda: not self._waiting, seconds):
                return
            now = time.monotonic()
            self._lost += now - began
            if now - self._asked_at >= PATIENCE:
                silence = f"has not answered for {now - self._asked_at:.0f} s"
                self._trouble = self._trouble or silence

    def _deliver(self) -> None:
        while (report := self._queue.get()) is not None and not self._abandoned:
            self._send(report)
            with self._lock:
                if self._waiting:  # unless it was given up meanwhile
                    self._waiting.popleft()
                self._asked_at = time.monotonic()
                if isinstance(self._trouble, str):
                    self._trouble = None  # it answers after all
                self._answered.notify_all()


class _Kept:
    """The journal of what trackers did not take, opened at its first report."""

    def __init__(self, directory: str | Path | None):
        self._parent = directory
        self._tracker: LocalTracker | None = None

    @property
    def directory(self) -> Path:
        """Where it is."""
        return self._opened().directory

    def keep(self, report: _Report) -> None:
        """Write a report; one that has no form as a file, or no room on the disk, is let go."""
        try:
            report.send(self._opened())
        except (OSError, TypeError, ImportError, ValueError):
            return

    def _opened(self) -> LocalTracker:
        if self._tracker is None:
            parent = self._parent or tempfile.mkdtemp(prefix="dew-")
            self._tracker = LocalTracker(os.path.join(parent, UNREPORTED))
        return self._tracker


def _each(tracker: Tracker | None) -> tuple[Any, ...]:
    if tracker is None:
        return ()
    if type(tracker) is Trackers:
        return tuple(one for part in tracker.trackers for one in _each(part))
    return (tracker,)
