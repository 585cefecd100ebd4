"""How verdicts are shown: one line each as they come, and a table at the end of a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from parity.check import Figure, Skipped, Verdict

NAME, SUBJECT = 20, 18


class Printer:
    """Writes verdicts to a stream.

    A terminal shows a status line while a check runs and a coloured table at the end; anything
    else gets one plain line a verdict, so that a log stays readable.

    Args:
        stream: where to write.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._status = _Status(stream) if self._live else None

    def seen(self, verdict: Verdict) -> None:
        """Take notice of one verdict."""
        if self._status is not None:
            self._status.seen(verdict)
            return
        print(line(verdict), file=self._stream, flush=True)

    def skipped(self, check: Skipped) -> None:
        """Take notice of a check that was not asked."""
        if self._status is not None:
            self._status.skipped.append(check)
            return
        print(skip_line(check), file=self._stream, flush=True)

    def finish(self, verdicts: Sequence[Verdict], written: Path | None) -> None:
        """Show what remains to be shown, and the sum of it all."""
        if self._status is not None:
            self._status.table(verdicts)
        print(summary(verdicts), file=self._stream)
        if written is not None:
            print(f"wrote {written}", file=self._stream)


class Bar:
    """How far a long run is: a bar on a terminal, a line for each step elsewhere.

    Args:
        stream: where to write.
        total: how many steps there are.
        what: what they are.
    """

    def __init__(self, stream: TextIO, total: int, what: str) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._stream = stream
        self._bar = Progress(console=Console(file=stream)) if stream.isatty() else None
        self._task = None if self._bar is None else self._bar.add_task(what, total=total)

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advanced(self, name: str, cells: Mapping[str, str]) -> None:
        """Take notice of a model's cells."""
        states = [cell.split(":")[0] for cell in cells.values()]
        told = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, description=f"{name}: {told}")
            return
        print(f"{name}: {told}", file=self._stream, flush=True)


def line(verdict: Verdict) -> str:
    """Return a verdict as one plain line, its reason below it where it did not pass."""
    mark = "agrees" if verdict.passed else "DIFFERS"
    head = f"{mark:<8}{verdict.subject:<{SUBJECT}} {verdict.name:<{NAME}}{figures(verdict)}"
    text = f"{head.rstrip()}  ({verdict.seconds:.1f} s)"
    return text if verdict.passed else f"{text}\n        {verdict.reason}"


def skip_line(check: Skipped) -> str:
    """Return a check that was not asked as one plain line."""
    return f"{'skipped':<8}{check.subject:<{SUBJECT}} {check.name:<{NAME}}{check.reason}"


def figures(verdict: Verdict) -> str:
    """Return the figures of a verdict in one line."""
    return "  ".join(f"{name} {_shown(value)}" for name, value in verdict.figures.items())


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return how many checks agreed."""
    agreed = sum(verdict.passed for verdict in verdicts)
    seconds = sum(verdict.seconds for verdict in verdicts)
    return f"{agreed} of {len(verdicts)} checks agree with torch and transformers ({seconds:.0f} s)"


class _Status:
    """The terminal's side: rich's status line and table."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._status = self._console.status("comparing with torch and transformers ...")
        self._status.start()
        self._count = 0
        self.skipped: list[Skipped] = []

    def seen(self, verdict: Verdict) -> None:
        self._status.update(f"{self._count} done, last: {verdict.subject} {verdict.name}")

    def table(self, verdicts: Sequence[Verdict]) -> None:
        from rich.markup import escape
        from rich.table import Table

        self._status.stop()
        table = Table("", "subject", "check", "figures", "seconds")
        for verdict in verdicts:
            mark = "[green]agrees" if verdict.passed else "[red]DIFFERS"
            told = figures(verdict) if verdict.passed else verdict.reason
            table.add_row(
                mark,
                escape(verdict.subject),
                escape(verdict.name),
                escape(told),
                f"{verdict.seconds:.1f}",
            )
        for check in self.skipped:
            table.add_row("skipped", escape(check.subject), escape(check.name), check.reason, "")
        self._console.print(table)


def _shown(value: Figure) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
