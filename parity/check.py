"""What a check is, what it answers, and how one is judged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from parity.pins import import_hint, unmet
from parity.plot import Plot
from parity.subject import Subject
from parity.torch_process import ReferenceFailed

Figure = float | int | str | list[str]

MODEL, METRIC = "model", "metric"
TORCH = ("torch>=2.6", "transformers>=5.0")
"""What a check of a model compares with, as pip writes it."""
METRICS = "metrics"
"""What stands for the subject of a check that is about none."""
NOT_PROVEN = "not proven: "
DRAWS = 6
"""How many draws of inputs are judged together where one fails by little."""


@dataclass(frozen=True)
class Finding:
    """What a comparison found: whether it holds, the numbers, and why not where it does not.

    Args:
        passed: whether the two sides agree.
        figures: the numbers behind it, by name.
        reason: why they do not, or empty.
        place: the first layer or operation where they part, where it is known.
        causes: what may have done it, likeliest first.
        plots: what the report draws.
        rounding: what was held to the rule for rounded numbers, where that is all that was asked.
    """

    passed: bool
    figures: Mapping[str, Figure] = field(default_factory=dict)
    reason: str = ""
    place: str = ""
    causes: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    rounding: Rounding | None = None


class Rounding(Protocol):
    """Rounding errors of one draw of inputs, which can be judged together with those of others."""

    @property
    def is_near(self) -> bool:
        """Whether the largest error is one that rounding could make."""
        ...

    def joined(self, others: Sequence[Finding]) -> Finding:
        """Return the finding on this draw and others together."""
        ...


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
        place: the first layer or operation where the two sides part, where it is known.
        causes: what may have done it, likeliest first.
        plots: what the report draws.
    """

    name: str
    passed: bool
    figures: Mapping[str, Figure]
    tolerance: str
    reason: str
    seconds: float
    subject: str = ""
    place: str = ""
    causes: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON takes it; an infinite or undefined figure becomes text."""
        record: dict[str, Any] = {**vars(self), "causes": list(self.causes)}
        record["figures"] = {name: _plain(value) for name, value in self.figures.items()}
        record["plots"] = [plot.to_dict() for plot in self.plots]
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Verdict:
        """Return the verdict that `to_dict` gave; figures that became text stay text."""
        plots = tuple(Plot.from_dict(plot) for plot in record["plots"])
        return cls(**{**record, "causes": tuple(record["causes"]), "plots": plots})


@dataclass(frozen=True)
class Skipped:
    """A check that a subject cannot be asked: the check's name, the subject's, and why."""

    name: str
    subject: str
    reason: str


class Check(Protocol):
    """One question about a subject, answered by two sides that see the same inputs.

    `reference` runs in a process of its own, where the subject has all that it has here, but its
    bundle is loaded only if it is asked for. What goes there and comes back is made of None,
    numbers, text, paths, arrays, lists, tuples, mappings and parity's own frozen dataclasses.

    A check may also say, as attributes of its class:

    - `kind`: "model" where it says nothing, or "metric", whose subject is None;
    - `needs`: what it compares with, as pip writes it, `("pytorch-fid==0.3.0", "scipy<1.18")`;
      `TORCH` where it says nothing. What is absent or of another version is named, with the pin;
    - `apart`: False where its reference has to run in this process.
    """

    name: str
    tolerance: str

    def inputs(self, subject: Any, seed: int) -> Any:
        """Return what both sides get; the same seed gives the same inputs."""
        ...

    def ours(self, subject: Any, inputs: Any) -> Any:
        """Return dew's answer."""
        ...

    def reference(self, subject: Any, inputs: Any) -> Any:
        """Return the answer of torch and transformers."""
        ...

    def compare(self, ours: Any, reference: Any) -> Finding:
        """Hold the two answers against the tolerance."""
        ...


Answered = Callable[[], Any]
"""Waits for the reference's answer and returns it."""


def judge(
    check: Check,
    subject: Subject | None,
    *,
    seed: int,
    begin: Callable[[Check, Subject | None, Any], Answered] | None = None,
) -> Verdict:
    """Run one check, and return its verdict.

    Matrix products run at the highest precision, since accelerators round them otherwise. An
    error on either side is a verdict that did not pass, so that the other checks still run.

    How two right programs round one draw of inputs is chance: of gradients of tiny models one in
    some hundreds is then more than twice as far off as torch's. Where the rule for rounded numbers
    fails by little, `DRAWS` draws are therefore judged together, by the same rule.

    Args:
        check: the question.
        subject: the model it is asked about; None for a check that is about none.
        seed: of the inputs.
        begin: starts the reference elsewhere, before dew's side runs; None runs it here, after.
    """
    start = time.perf_counter()
    finding = _found(check, subject, seed, begin)
    if not finding.passed and finding.rounding is not None and finding.rounding.is_near:
        seeds = range(seed + 1, seed + DRAWS)
        others = [_found(check, subject, other, begin) for other in seeds]
        finding = finding.rounding.joined(others)
    return Verdict(
        name=check.name,
        passed=finding.passed,
        figures=finding.figures,
        tolerance=check.tolerance,
        reason=finding.reason,
        seconds=time.perf_counter() - start,
        subject=METRICS if subject is None else subject.name,
        place=finding.place,
        causes=finding.causes,
        plots=finding.plots,
    )


def _found(
    check: Check,
    subject: Subject | None,
    seed: int,
    begin: Callable[[Check, Subject | None, Any], Answered] | None,
) -> Finding:
    """Ask both sides about one draw of inputs; an error of either is a finding too."""
    import jax

    side = "inputs"
    try:
        lacking = unmet(needs_of(check))
        if lacking:
            raise Unmet(lacking)
        with jax.default_matmul_precision("highest"):
            inputs = check.inputs(subject, seed)
            side = "the reference"
            answered = None if begin is None else begin(check, subject, inputs)
            side = "dew"
            ours = check.ours(subject, inputs)
            side = "the reference"
            reference = check.reference(subject, inputs) if answered is None else answered()
            side = "the comparison"
            return check.compare(ours, reference)
    except (Unmet, ReferenceFailed) as error:
        return Finding(False, {}, f"{NOT_PROVEN}{error}")
    except Exception as error:
        return Finding(False, {}, f"{NOT_PROVEN}{side} raised {_raised(error)}")


def needs_of(check: Check) -> tuple[str, ...]:
    """Return what a check compares with, as pip writes it."""
    return tuple(getattr(check, "needs", TORCH))


class Unmet(Exception):
    """What a check compares with is not installed as it has to be."""


def _raised(error: Exception) -> str:
    """Return an error's kind and text, and the pin where a library could not be imported."""
    text = str(error).strip() or "no message"
    return f"{type(error).__name__}: {text}{import_hint(error)}"


def _plain(value: Figure) -> Figure:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
