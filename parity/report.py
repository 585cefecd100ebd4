"""How verdicts are shown: one line each as they come, and a table at the end of a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from parity.check import NOT_PROVEN, Figure, Skipped, Verdict
from parity.evidence import Certificate
from parity.watcher import Watcher

NAME, SUBJECT = 20, 18


class Printer:
    """Writes verdicts to a stream.

    A terminal shows a bar while the checks run and a coloured table at the end; anything else gets
    one plain line a verdict, so that a log stays readable.

    Args:
        stream: where to write.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = _Live(stream) if stream.isatty() else None

    @property
    def watcher(self) -> Watcher:
        """What tells this printer of a run."""
        return Watcher(self.begun, self.seen, self.skipped)

    def begun(self, check: str, subject: str, share: float) -> None:
        """Take notice of a check that begins, and of the share of all that is done."""
        if self._live is not None:
            self._live.begun(f"{subject}: {check}", share)

    def seen(self, verdict: Verdict) -> None:
        """Take notice of one verdict."""
        if self._live is None:
            print(line(verdict), file=self._stream, flush=True)

    def skipped(self, check: Skipped) -> None:
        """Take notice of a check that was not asked."""
        if self._live is None:
            print(skip_line(check), file=self._stream, flush=True)

    def finish(self, found: Certificate, written: Sequence[Path] = ()) -> None:
        """Show what remains to be shown, and the sum of it all."""
        if self._live is not None:
            self._live.table(found)
        print(summary(found.verdicts), file=self._stream)
        print(conclusion(found), file=self._stream)
        for path in written:
            print(f"wrote {path}", file=self._stream)

    def __enter__(self) -> Printer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


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
    """Return a verdict as one plain line, what is known of the difference below it."""
    head = f"{mark(verdict):<8}{verdict.subject:<{SUBJECT}} {verdict.name:<{NAME}}"
    text = f"{(head + figures(verdict)).rstrip()}  ({verdict.seconds:.1f} s)"
    return "\n        ".join([text, *difference(verdict)])


def mark(verdict: Verdict) -> str:
    """Return the word that begins a verdict's line."""
    if verdict.passed:
        return "agrees"
    return "UNKNOWN" if verdict.reason.startswith(NOT_PROVEN) else "DIFFERS"


def difference(verdict: Verdict) -> list[str]:
    """Return what is known of why a check did not pass: the reason, the place, likely causes."""
    if verdict.passed:
        return []
    place = [f"first at {verdict.place}"] if verdict.place else []
    causes = [f"likely: {'; '.join(verdict.causes)}"] if verdict.causes else []
    return [verdict.reason, *place, *causes]


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


def conclusion(found: Certificate) -> str:
    """Return the last word: proven, or what was not."""
    if found.passed:
        return "proven: every check agrees"
    if not found.verdicts:
        return "not proven: no check could be asked"
    names = list(dict.fromkeys(verdict.name for verdict in found.failed))
    return f"not proven: {', '.join(names)}"


class _Live:
    """The terminal's side: rich's bar and table."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(file=stream)
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("loading", total=1.0)
        self._bar.start()

    def begun(self, what: str, share: float) -> None:
        self._bar.update(self._task, description=what, completed=share)

    def stop(self) -> None:
        self._bar.stop()

    def table(self, found: Certificate) -> None:
        from rich.markup import escape
        from rich.table import Table

        self.stop()
        table = Table("", "subject", "check", "figures", "seconds")
        for verdict in found.verdicts:
            colour = "green" if verdict.passed else "red"
            told = figures(verdict) if verdict.passed else "\n".join(difference(verdict))
            table.add_row(
                f"[{colour}]{mark(verdict)}",
                escape(verdict.subject),
                escape(verdict.name),
                escape(told),
                f"{verdict.seconds:.1f}",
            )
        for check in found.skipped:
            row = ("skipped", escape(check.subject), escape(check.name), escape(check.reason), "")
            table.add_row(*row)
        self._console.print(table)


def _shown(value: Figure) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
