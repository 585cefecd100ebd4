"""`LocalTracker`: journals and previews in a folder, and plots of them on request."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dew.artifacts import TextSamples
from dew.tracking.plots import plot_scalars
from dew.tracking.tracker import ClosedOnExit

SCALARS = "scalars.jsonl"


class LocalTracker(ClosedOnExit):
    """Writes each report to `directory` before the call returns.

    Scalars go to `scalars.jsonl`, a line a report: `{"step": 5, "train/loss": 1.25}`. A value
    that is not finite is the string "NaN", "+Inf" or "-Inf"; `float(value)` reads it. Text
    samples go to `previews/text-<step>.txt`. A journal that is there already is added to.

    Args:
        directory: made at the first report.
        plots: whether to draw the plots when the tracker closes.
    """

    def __init__(self, directory: str | Path, plots: bool = False):
        self.directory = Path(directory)
        self.plots = plots
        self._closed = False
        self._mended = False

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Add one line to the journal.

        Raises:
            ValueError: the tracker is closed.
        """
        self._check_open()
        record = {"step": int(step), **{name: _written(value) for name, value in scalars.items()}}
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self._mended:
            _cut_half_line(self.directory / SCALARS)
            self._mended = True
        with (self.directory / SCALARS).open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(record) + "\n")

    def artifact(self, value: Any, step: int) -> None:
        """Write a preview.

        Raises:
            TypeError: the value has no form as a file here.
            ValueError: the tracker is closed.
        """
        self._check_open()
        if not isinstance(value, TextSamples):
            raise TypeError(
                f"LocalTracker writes TextSamples, not {type(value).__name__}; log its numbers "
                "as scalars."
            )
        folder = self.directory / "previews"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"text-{int(step)}.txt").write_text(_text_of(value), encoding="utf-8")

    def plot(self) -> list[Path]:
        """Draw the journal's losses and perplexities as PNG files and return their paths.

        Raises:
            ImportError: matplotlib is absent; the extra `plots` has it.
        """
        return plot_scalars(self.scalars(), self.directory)

    def scalars(self) -> list[dict[str, Any]]:
        """Return the journal's records; a last line that a kill cut short is left out."""
        path = self.directory / SCALARS
        if not path.exists():
            return []
        records = []
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                records.append(json.loads(line))
            except ValueError:
                if number != len(lines):
                    raise
        return records

    def close(self) -> None:
        """Draw the plots where they were asked for; closing twice does nothing more."""
        if not self._closed:
            self._closed = True
            if self.plots:
                self.plot()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"the tracker of {self.directory} is closed; build another to log")


def _written(value: Any) -> float | int | str:
    number = np.asarray(value).item()
    if isinstance(number, float) and not math.isfinite(number):
        return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"
    return number


def _cut_half_line(path: Path) -> None:
    """Take off a last line without its end, which a killed run left."""
    if path.exists():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            path.write_bytes(whole)


def _text_of(samples: TextSamples) -> str:
    rows = samples.texts or [" ".join(map(str, row)) for row in np.asarray(samples.tokens)]
    head = f"prompt: {samples.prompt}\n\n" if samples.prompt else ""
    return head + "\n\n---\n\n".join(rows) + "\n"
