"""pytest's `--dew-parity`: the fixture `dew_parity`, and a report of all that was compared with it.

Tests that use the fixture run only where the option is given; elsewhere they are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from parity.check import Skipped, Verdict

OPTION, FOLDER = "--dew-parity", "--dew-parity-report"
FIXTURE = "dew_parity"
NAME = "dew parity"


class Parity:
    """What the fixture gives: comparisons that fail the test where something is not proven."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.skipped: list[Skipped] = []

    def certify(
        self,
        path: str | Path,
        *,
        checks: list[str] | None = None,
        seed: int = 0,
        full: bool = False,
    ) -> None:
        """Hold a checkpoint to torch and transformers; nothing is written beside it.

        Args:
            path: a Hugging Face folder or a GGUF file.
            checks: names of checks, see `python -m parity list`; None for all.
            seed: of every input.
            full: whether to run the checks that take minutes.

        Raises:
            AssertionError: a check did not agree or could not run.
            InputRefused: a checkpoint that dew refuses.
        """
        from parity.running import examined
        from parity.watcher import Watcher

        __tracebackhide__ = True
        found = examined(checks, model=path, seed=seed, full=full, watcher=Watcher())
        self.skipped += found.skipped
        self._take(list(found.verdicts))

    def compare(self, ours: Any, reference: Any, inputs: Any, **options: Any) -> None:
        """Hold a function to another as `parity.compare` does, with its options.

        Raises:
            AssertionError: they do not agree, or one could not run.
        """
        from parity.comparing import compare

        __tracebackhide__ = True
        self._take([compare(ours, reference, inputs, **options)])

    def verify(self, path: str | Path) -> None:
        """Ask whether the certificate beside a checkpoint holds for its bytes.

        Raises:
            AssertionError: it does not.
            InputRefused: there is no such path, or the certificate cannot be read.
        """
        from parity.verifying import verified

        __tracebackhide__ = True
        found = verified(path)
        if not found.holds:
            raise AssertionError("\n".join(found.lines))

    def _take(self, verdicts: list[Verdict]) -> None:
        from parity.report import line

        __tracebackhide__ = True
        self.verdicts += verdicts
        failed = [line(verdict) for verdict in verdicts if not verdict.passed]
        if failed or not verdicts:
            raise AssertionError("\n".join(["not proven:", *failed]))


KEPT: pytest.StashKey[Parity] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two options."""
    group = parser.getgroup(NAME)
    group.addoption(OPTION, action="store_true", help=f"run the tests that use {FIXTURE}")
    group.addoption(
        FOLDER,
        metavar="FOLDER",
        help="write certificate.json, report.html, badge.svg and certificate.md there",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the record of the session."""
    config.stash[KEPT] = Parity()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what uses the fixture where the option is absent."""
    if config.getoption(OPTION):
        return
    skip = pytest.mark.skip(reason=f"compares with torch: run pytest {OPTION}")
    for item in items:
        if FIXTURE in getattr(item, "fixturenames", ()):
            item.add_marker(skip)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Give a worker's verdicts to the process that shows them."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        kept = session.config.stash[KEPT]
        output[FIXTURE] = {
            "verdicts": [verdict.to_dict() for verdict in kept.verdicts],
            "skipped": [vars(check) for check in kept.skipped],
        }


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the verdicts of a worker of pytest-xdist."""
    told = getattr(node, "workeroutput", {}).get(FIXTURE)
    if told and (told["verdicts"] or told["skipped"]):
        from parity.check import Skipped, Verdict

        kept = node.config.stash[KEPT]
        kept.verdicts += map(Verdict.from_dict, told["verdicts"])
        kept.skipped += [Skipped(**check) for check in told["skipped"]]


@pytest.fixture
def dew_parity(request: pytest.FixtureRequest) -> Parity:
    """Return what compares with torch, and keeps the verdicts for the session's report."""
    return request.config.stash[KEPT]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the verdicts, and write the report that was asked for."""
    kept = config.stash[KEPT]
    if not kept.verdicts:
        return
    from parity.evidence import certificate_of
    from parity.report import conclusion, line, skip_line
    from parity.writing import write_certificate

    terminalreporter.section(NAME)
    for verdict in kept.verdicts:
        terminalreporter.write_line(line(verdict))
    for check in kept.skipped:
        terminalreporter.write_line(skip_line(check))
    found = certificate_of(kept.verdicts, kept.skipped, seed=0)
    terminalreporter.write_line(conclusion(found))
    folder = config.getoption(FOLDER)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path in write_certificate(found, Path(folder), name=config.rootpath.name):
            terminalreporter.write_line(f"wrote {path}")
