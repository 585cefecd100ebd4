"""Where a wrong port parts from torch: the first layer and operation, and what proves the cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity import inputs as model_inputs
from parity.causes import EMBEDDING, HEAD, corrections, likely, role_of
from parity.check import Check, Finding, Verdict
from parity.checks.hidden_states import Asked
from parity.checks.logits import SHORT
from parity.inputs import Inputs
from parity.inside import Seen, seen_inside
from parity.places import Site
from parity.rounding import RULE
from parity.steps import Step, TorchSide, steps_between, tensors_of, torch_side
from parity.subject import Subject

# A module's own rounding may exceed the rule by chance; what a fault does is far above it.
FIRM = 4.0
TRIED = 14
"""How many corrections are tried at most; each is compiled anew."""
FORWARD = ("logits", "hidden states", "padding", "loss and gradient", "update", "loss curve")
FORWARD += ("perplexity", "greedy", "beams", "sampled", "dtypes")
"""The checks whose failure may lie in what a model computes."""
EXPLAINED = ("weights", *FORWARD)
OUTWARD = ("logits", "padding", "dtypes")
"""The checks among them that look at outputs alone."""

Judge = Callable[..., Verdict]
Begin = Callable[[Check, Subject | None, Any], Callable[[], Any]]


@dataclass(frozen=True)
class Place:
    """Where two sides part.

    Args:
        module: torch's name of the module.
        ours: dew's name, with the layer.
        layer: which of the stacked layers it is in, None where it is in none.
        role: what the operation is for, of `parity.causes`.
        operation: the same in words.
        error: root mean square error there.
        allowed: the largest that passes.
    """

    module: str
    ours: str
    layer: int | None
    role: str
    operation: str
    error: float
    allowed: float

    @property
    def shown(self) -> str:
        """The place in one line."""
        beside = "" if self.module == self.ours else f" (dew: {self.ours})"
        return (
            f"{self.operation} at {self.module}{beside}: "
            f"off by {self.error:.2e}, allowed {self.allowed:.2e}"
        )


class Inside:
    """A check of every module of a model: what `localised` asks to find where two sides part.

    Args:
        length: of the texts, in tokens.
        left: whether padding stands on the left too.
    """

    name = "inside"
    tolerance = RULE

    def __init__(self, length: int = SHORT, *, left: bool = True) -> None:
        self._length, self._left = length, left

    def inputs(self, subject: Subject, seed: int) -> Asked:
        """Return a batch with padding."""
        batch = model_inputs.batch(subject, self._length, seed, left=self._left)
        return Asked(batch, tensors_of(subject))

    def ours(self, subject: Subject, inputs: Asked) -> tuple[Inputs, Mapping[str, Seen]]:
        """Return what dew's modules read and gave."""
        return inputs.inputs, seen_inside(subject, inputs.inputs)

    def reference(self, subject: Subject, inputs: Asked) -> TorchSide:
        """Return what torch's read and gave, in float32 and in float64."""
        return torch_side(subject, inputs.inputs, inputs.held, list)

    def compare(self, ours: tuple[Inputs, Mapping[str, Seen]], reference: TorchSide) -> Finding:
        """Name the first place that breaks the rule."""
        place = first_parting(steps_between(ours[1], reference, ours[0]))
        return Finding(place is None, {}, "" if place is None else place.shown)


def first_parting(steps: Sequence[Step]) -> Place | None:
    """Return the first place of a run that breaks the rule, or None."""
    for limit in (FIRM, 1.0):
        for number, step in enumerate(steps):
            if not step.deviation.excess <= limit:
                return _place(step, steps[:number])
    return None


def localised(
    verdict: Verdict,
    check: Check,
    subject: Subject | None,
    *,
    seed: int,
    judge: Judge,
    begin: Begin | None = None,
) -> Verdict:
    """Return a failed verdict with the place where the sides part and the causes of it.

    Corrections of dew's side are tried, the likeliest first, and the check runs again with each
    that mends the place: a cause is proven where the check then passes.

    Args:
        verdict: of `check`; one that passed comes back as it is.
        check: the check.
        subject: what it was asked about.
        seed: of its inputs.
        judge: runs a check, as `parity.check.judge`.
        begin: begins a reference elsewhere, as for `judge`; None runs it here.
    """
    if verdict.passed or subject is None or check.name not in EXPLAINED:
        return verdict
    try:
        place, steps_of = _parting(check, subject, seed, begin or _here)
        causes = _causes(check, subject, place, steps_of, seed=seed, judge=judge)
    except Exception as error:
        text = str(error).strip() or "no message"
        causes = (f"not looked into: {type(error).__name__}: {text}",)
        return dataclasses.replace(verdict, causes=causes)
    shown = place.shown if place is not None else verdict.place or _behind(check, verdict)
    return dataclasses.replace(verdict, place=shown, causes=causes)


StepsOf = Callable[[Subject], list[Step]]


def _here(check: Check, subject: Subject | None, inputs: Any) -> Callable[[], Any]:
    return lambda: check.reference(subject, inputs)


def _parting(
    check: Check, subject: Subject, seed: int, begin: Begin
) -> tuple[Place | None, StepsOf]:
    """Return the place, and what gives the same run's steps of a corrected subject."""
    long = subject.context
    runs = [Inside(min(SHORT, long), left=check.name != "padding")]
    runs += [Inside(long)] if long > SHORT else []
    found = []
    for run in runs:
        asked = run.inputs(subject, seed)
        found.append(_repeated(asked.inputs, begin(run, subject, asked)()))
        place = first_parting(found[-1](subject))
        if place is not None:
            return place, found[-1]
    return None, found[-1]


def _repeated(inputs: Inputs, theirs: TorchSide) -> StepsOf:
    return lambda subject: steps_between(seen_inside(subject, inputs), theirs, inputs)


def _causes(
    check: Check,
    subject: Subject,
    place: Place | None,
    steps_of: StepsOf,
    *,
    seed: int,
    judge: Judge,
) -> tuple[str, ...]:
    role = HEAD if place is None else place.role
    module = "" if place is None else place.module
    tried = 0
    for correction in corrections(subject, role, module):
        if tried == TRIED:
            break
        tried += 1
        try:
            mended = correction.made(subject)
            if place is not None and not _mends(steps_of(mended), place):
                continue
            if judge(check, mended, seed=seed).passed:
                return (f"proven: {correction.said}; with that mended, the check passes",)
        except Exception:
            continue
    return tuple(f"may be: {cause}" for cause in likely(role))


def _mends(steps: Sequence[Step], place: Place) -> bool:
    later = first_parting(steps)
    return later is None or later.module != place.module


def _place(step: Step, before: Sequence[Step]) -> Place:
    role = role_of(step.site, step.side, first=not any(_is_layered(s.site) for s in before))
    return Place(
        step.site.theirs,
        step.site.shown,
        step.site.layer,
        role,
        OPERATIONS[role],
        step.deviation.ours,
        step.deviation.allowed,
    )


def _is_layered(site: Site) -> bool:
    return site.layer is not None


def _behind(check: Check, verdict: Verdict) -> str:
    """Return where a model parts from torch whose modules all agree."""
    worst = verdict.figures.get("worst")
    if check.name in OUTWARD:
        return f"the head, behind every module that agrees: {worst}"
    return f"the backward pass, at {worst}" if isinstance(worst, str) else ""


OPERATIONS = {
    "map": "the map itself",
    "norm": "the norm itself",
    "attention": "attention (scores, mask, positions or softmax)",
    "activation": "the activation",
    "sum": "what is summed into the stream",
    "inner": "what is done between its maps",
    EMBEDDING: "the embedding (rows, positions or scale)",
    HEAD: "the head",
}
"""The operation of each role, in words."""
