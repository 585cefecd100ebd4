"""`LocalTracker`: journals and previews in a folder, and plots of them on request."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dew.telemetry.records import Record, json_value, record_fields
from dew.tracking.plots import plot_scalars
from dew.tracking.previews import PreviewNames, preview_files
from dew.tracking.tracker import ClosedOnExit

SCALARS = "scalars.jsonl"
RECORDS = "records.jsonl"


class LocalTracker(ClosedOnExit):
    """Writes each report to `directory` before the call returns.

    Scalars go to `scalars.jsonl`, a line a report: `{"step": 5, "train/loss": 1.25}`. A value
    that is not finite is the string "NaN", "+Inf" or "-Inf"; `float(value)` reads it. Records go
    to `records.jsonl`, `{"type": "FitEnded", "step": 10, "status": "completed", ...}`. Previews
    go to `previews/`, one file or two each, by kind and step: `text-<step>.txt`,
    `images-<step>.png`, `video-<step>.gif`, `representations-<step>.png`. A journal that is there
    already is added to.

    Args:
        directory: made at the first report.
        plots: whether to draw the plots when the tracker closes.
    """

    on_disk = True

    def __init__(self, directory: str | Path, plots: bool = False):
        self.directory = Path(directory)
        self.plots = plots
        self._names = PreviewNames()
        self._scalars = _Journal(self.directory / SCALARS)
        self._records = _Journal(self.directory / RECORDS)
        self._closed = False

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Add one line to the journal of scalars.

        Raises:
            ValueError: the tracker is closed.
        """
        self._check_open()
        line = {"step": int(step), **{name: _number(value) for name, value in scalars.items()}}
        self._scalars.add(line)

    def artifact(self, value: Any, step: int) -> None:
        """Add a record to the journal of records, or write a preview.

        Raises:
            TypeError: the value has no form as a file here.
            ValueError: the tracker is closed.
            ImportError: an image preview, and Pillow is absent; the extra `images` has it.
        """
        self._check_open()
        if isinstance(value, Record):
            head = {"type": type(value).__name__, "step": int(step)}
            self._records.add({**head, **record_fields(value), **head})
            return
        folder = self.directory / "previews"
        for file in preview_files(value, self._names.stem(value, int(step))):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file.name).write_bytes(file.content)

    def plot(self) -> list[Path]:
        """Draw every group of scalars as a PNG file in `plots/` and return their paths.

        Raises:
            ImportError: matplotlib is absent; the extra `plots` has it.
        """
        return plot_scalars(self.scalars(), self.directory / "plots")

    def scalars(self) -> list[dict[str, Any]]:
        """Return the reports of scalars; a last line that a kill cut short is left out."""
        return self._scalars.lines()

    def records(self) -> list[dict[str, Any]]:
        """Return the records, each with its `type` and `step`."""
        return self._records.lines()

    def close(self) -> None:
        """Draw the plots where they were asked for; closing twice does nothing more."""
        if not self._closed:
            self._closed = True
            if self.plots:
                self.plot()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"the tracker of {self.directory} is closed; build another to log")


class _Journal:
    """A file of JSON lines that is only added to, each line in one write.

    It is opened for each line: on a shared disk only a closed file shows to other machines, and
    tells that the disk was full. A half line, left by a killed run or a full disk, is cut off
    before the next is written.
    """

    def __init__(self, path: Path):
        self._path = path
        self._whole = False

    def add(self, line: Mapping[str, Any]) -> None:
        """Write one line."""
        content = json.dumps(line).encode() + b"\n"
        if not self._whole:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _cut_half_line(self._path)
        self._whole = False
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            written = os.write(file, content)
        finally:
            os.close(file)
        if written != len(content):
            raise OSError(f"{self._path}: {written} of {len(content)} bytes; is the disk full?")
        self._whole = True

    def lines(self) -> list[dict[str, Any]]:
        """Return the whole lines."""
        if not self._path.exists():
            return []
        records = []
        lines = self._path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                records.append(json.loads(line))
            except ValueError:
                if number != len(lines):
                    raise
        return records


def _number(value: Any) -> Any:
    return json_value(value if isinstance(value, float | int) else np.asarray(value).item())


def _cut_half_line(path: Path) -> None:
    """Take off a last line without its end, which a killed run left."""
    if path.exists():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            path.write_bytes(whole)
