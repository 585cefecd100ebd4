"""What a check is, what it answers, and how one is judged."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from parity.subject import Subject

Figure = float | int | str | list[str]


@dataclass(frozen=True)
class Finding:
    """What a comparison found: whether it holds, the numbers, and why not where it does not."""

    passed: bool
    figures: Mapping[str, Figure] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """The answer of one check about one subject.

    Args:
        name: of the check.
        passed: whether the port was shown to agree; a check that could not run has not passed.
        figures: the numbers behind it, by name.
        tolerance: the rule that was applied, in words.
        reason: why it did not pass, or empty.
        seconds: how long the check took, both sides.
        subject: what was checked.
    """

    name: str
    passed: bool
    figures: Mapping[str, Figure]
    tolerance: str
    reason: str
    seconds: float
    subject: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON takes it; an infinite or undefined figure becomes text."""
        record = asdict(self)
        record["figures"] = {name: _plain(value) for name, value in self.figures.items()}
        return record


@dataclass(frozen=True)
class Skipped:
    """A check that a subject cannot be asked: the check's name, the subject's, and why."""

    name: str
    subject: str
    reason: str


class Check(Protocol):
    """One question about a subject, answered by two sides that see the same inputs."""

    name: str
    tolerance: str

    def inputs(self, subject: Subject, seed: int) -> Any:
        """Return what both sides get; the same seed gives the same inputs."""
        ...

    def ours(self, subject: Subject, inputs: Any) -> Any:
        """Return dew's answer."""
        ...

    def reference(self, subject: Subject, inputs: Any) -> Any:
        """Return the answer of torch and transformers."""
        ...

    def compare(self, ours: Any, reference: Any) -> Finding:
        """Hold the two answers against the tolerance."""
        ...


def judge(check: Check, subject: Subject, *, seed: int) -> Verdict:
    """Run one check, and return its verdict.

    Matrix products run at the highest precision, since accelerators round them otherwise. An
    error on either side is a verdict that did not pass, so that the other checks still run.

    Args:
        check: the question.
        subject: the model it is asked about.
        seed: of the inputs.
    """
    import jax

    start = time.perf_counter()
    side = "inputs"
    try:
        with jax.default_matmul_precision("highest"):
            inputs = check.inputs(subject, seed)
            side = "dew"
            ours = check.ours(subject, inputs)
            side = "the reference"
            reference = check.reference(subject, inputs)
            side = "the comparison"
            finding = check.compare(ours, reference)
    except Exception as error:
        text = str(error).strip() or "no message"
        finding = Finding(False, {}, f"not proven: {side} raised {type(error).__name__}: {text}")
    return Verdict(
        name=check.name,
        passed=finding.passed,
        figures=finding.figures,
        tolerance=check.tolerance,
        reason=finding.reason,
        seconds=time.perf_counter() - start,
        subject=subject.name,
    )


def _plain(value: Figure) -> Figure:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
