"""How a run shows that it moves: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol, TextIO


class Progress(Protocol):
    """Where a fit shows what it does."""

    def start(self, step: int, steps: int) -> None:
        """The run begins at `step` of `steps`."""
        ...

    def phase(self, text: str) -> None:
        """Something other than a step is under way, such as compiling."""
        ...

    def advance(self, step: int, loss: float, rate: float) -> None:
        """A step was made; `loss` and `rate` (tokens a second) are those of the interval."""
        ...

    def report(self, scalars: Mapping[str, float], step: int, note: str = "") -> None:
        """Values were logged; `note` is for a reader only."""
        ...

    def close(self) -> None:
        """The run ended, well or not."""
        ...


class Silent:
    """Shows nothing."""

    def start(self, step: int, steps: int) -> None: ...  # noqa: D102

    def phase(self, text: str) -> None: ...  # noqa: D102

    def advance(self, step: int, loss: float, rate: float) -> None: ...  # noqa: D102

    def report(self, scalars: Mapping[str, float], step: int, note: str = "") -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


class Lines:
    """Prints one plain line a report: no bar, no carriage return, fit for a log file."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream
        self._steps = 0

    def start(self, step: int, steps: int) -> None:
        """Remember where the run ends."""
        self._steps = steps

    def phase(self, text: str) -> None:
        """Print nothing: a log has the reports."""

    def advance(self, step: int, loss: float, rate: float) -> None:
        """Print nothing between reports."""

    def report(self, scalars: Mapping[str, float], step: int, note: str = "") -> None:
        """Print the values of one report on one line."""
        parts = [f"step {step}/{self._steps}", *_items(scalars), *([note] if note else [])]
        if "train/step_seconds" in scalars:
            parts.append(f"left {_clock(scalars['train/step_seconds'] * (self._steps - step))}")
        print("  ".join(parts), file=self._out(), flush=True)

    def close(self) -> None:
        """Nothing to undo."""

    def _out(self) -> TextIO:
        return self._stream if self._stream is not None else sys.stdout


class Live:
    """Keeps one line up to date on a terminal, with each report printed above it."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream
        self._bar: Any = None
        self._task: Any = None

    def start(self, step: int, steps: int) -> None:
        """Draw the line."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=Console(file=self._stream) if self._stream is not None else None,
            transient=True,
        )
        self._task = self._bar.add_task("", total=steps, completed=step)
        self._bar.start()

    def phase(self, text: str) -> None:
        """Show what is under way in the place of the loss."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)

    def advance(self, step: int, loss: float, rate: float) -> None:
        """Move the bar."""
        if self._bar is not None:
            text = f"loss {loss:.4g}  {rate:,.0f} tokens/s"
            self._bar.update(self._task, completed=step, description=text)

    def report(self, scalars: Mapping[str, float], step: int, note: str = "") -> None:
        """Print the values above the bar."""
        if self._bar is not None:
            parts = [f"step {step}", *_items(scalars), *([note] if note else [])]
            self._bar.console.print("  ".join(parts), markup=False, highlight=False)

    def close(self) -> None:
        """Take the line away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def default_progress(stream: TextIO | None = None) -> Progress:
    """Return `Live` for a terminal and `Lines` for anything else."""
    out = stream if stream is not None else sys.stdout
    return Live(stream) if out.isatty() else Lines(stream)


def _items(scalars: Mapping[str, float]) -> list[str]:
    return [f"{name.removeprefix('train/')} {value:.6g}" for name, value in scalars.items()]


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}"
