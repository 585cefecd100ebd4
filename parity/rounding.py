"""The rule for rounded numbers: at most twice torch's own error, plus one ulp of scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parity.check import Figure, Finding
from parity.plot import BARS, Plot

TWICE = 2.0
ULP = float(np.finfo(np.float32).eps)
RULE = "float32 error <= 2 x torch's float32 error + 1 ulp of scale, against float64 torch"
SHOWN = 4
NEAR = 4.0
"""How many times what is allowed an error may be and still be looked at over several draws."""


@dataclass(frozen=True)
class Deviation:
    """How far two float32 results of one tensor are from the float64 one.

    Args:
        name: of the tensor.
        ours: root mean square error of dew's float32 result.
        torch: the same for torch's float32 result.
        scale: the size that one unit in the last place is taken of.
        ours_largest: the largest error of one value of dew's result.
        torch_largest: the same for torch's float32 result.
    """

    name: str
    ours: float
    torch: float
    scale: float
    ours_largest: float = 0.0
    torch_largest: float = 0.0

    @property
    def allowed(self) -> float:
        """The largest error of ours that passes."""
        return self._allowed(self.torch)

    @property
    def excess(self) -> float:
        """Our error as a share of what is allowed; above 1 fails, and so does nan."""
        return _share(self.ours, self.allowed)

    @property
    def largest_excess(self) -> float:
        """The same share by the largest errors: told, and not judged.

        The largest of thousands of rounding errors is chance: on small random models torch and
        dew each have the larger one, and in 3 of 682 gradients it was more than allowed.
        """
        return _share(self.ours_largest, self._allowed(self.torch_largest))

    def _allowed(self, torch: float) -> float:
        return TWICE * torch + ULP * self.scale


def deviation(
    name: str, ours: np.ndarray, single: np.ndarray, exact: np.ndarray, *, scale: float
) -> Deviation:
    """Return the deviations of dew's and torch's float32 arrays from torch's float64 one.

    Args:
        name: of the tensor.
        ours: dew's result.
        single: torch's float32 result, same shape.
        exact: torch's float64 result, same shape.
        scale: the size that one unit in the last place is taken of.

    Raises:
        ValueError: the shapes differ.
    """
    if not ours.shape == single.shape == exact.shape:
        raise ValueError(
            f"{name}: dew gives shape {ours.shape}, torch {exact.shape}; the tensors do not match"
        )
    own, theirs = _errors(ours, exact), _errors(single, exact)
    return Deviation(name, own[0], theirs[0], scale, own[1], theirs[1])


def deviations(
    ours: Mapping[str, np.ndarray],
    single: Mapping[str, np.ndarray],
    exact: Mapping[str, np.ndarray],
    *,
    scale: float | None = None,
) -> list[Deviation]:
    """Return the deviation of each tensor that torch names.

    Args:
        ours: dew's tensors by torch name.
        single: torch's float32 ones.
        exact: torch's float64 ones.
        scale: one scale for all; None takes each tensor's largest magnitude.

    Raises:
        ValueError: a tensor that only one side has.
    """
    lonely = sorted(set(exact) - set(ours))
    if lonely:
        raise ValueError(f"dew has no counterpart of {', '.join(lonely[:SHOWN])}")
    return [
        deviation(
            name,
            ours[name],
            single[name],
            exact[name],
            scale=float(np.abs(exact[name]).max()) if scale is None else scale,
        )
        for name in exact
    ]


@dataclass(frozen=True)
class Draw:
    """The deviations of one draw of inputs.

    Args:
        parts: one a tensor.
        figures: what else is reported of the draw.
    """

    parts: tuple[Deviation, ...]
    figures: Mapping[str, Figure]

    @property
    def is_near(self) -> bool:
        """Whether no error is more than `NEAR` times what is allowed."""
        return all(part.excess <= NEAR for part in self.parts)

    def joined(self, others: Sequence[Finding]) -> Finding:
        """Return the finding on this draw and others, each error the root mean square of all.

        A draw that found something else than rounded numbers is the finding.
        """
        draws: list[Draw] = [self]
        for other in others:
            if not isinstance(other.rounding, Draw):
                return other
            draws.append(other.rounding)
        parts = zip(*(draw.parts for draw in draws), strict=True)
        return judged([_together(same) for same in parts], **self.figures, draws=len(draws))


def _together(parts: Sequence[Deviation]) -> Deviation:
    """Return the deviation of a tensor over several draws."""
    ours, torch = (
        float(np.sqrt(np.mean(np.square(errors))))
        for errors in ([part.ours for part in parts], [part.torch for part in parts])
    )
    return Deviation(
        parts[0].name,
        ours,
        torch,
        float(np.mean([part.scale for part in parts])),
        max(part.ours_largest for part in parts),
        max(part.torch_largest for part in parts),
    )


def judged(found: Sequence[Deviation], **more: Figure) -> Finding:
    """Return the finding on several tensors: all must be within the rule.

    Args:
        found: the tensors.
        **more: figures to report beside.
    """
    worst = max(found, key=_order)
    failing = [part for part in found if not part.excess <= 1]
    figures: dict[str, Figure] = {
        "ours": worst.ours,
        "torch": worst.torch,
        "allowed": worst.allowed,
        "worst": worst.name,
        "tensors": len(found),
        "by_largest_error": max(part.largest_excess for part in found),
        **more,
    }
    plots = (_drawn(found),)
    draw = Draw(tuple(found), more)
    if not failing:
        return Finding(True, figures, plots=plots, rounding=draw)
    named = sorted(failing, key=_order, reverse=True)[:SHOWN]
    lines = [
        f"{part.name} is off by {part.ours:.2e} (allowed {part.allowed:.2e})" for part in named
    ]
    reason = f"{len(failing)} of {len(found)} differ: " + "; ".join(lines)
    return Finding(False, figures, reason, plots=plots, rounding=draw)


def _drawn(found: Sequence[Deviation]) -> Plot:
    """Return the errors of each tensor beside torch's own and what is allowed."""
    lines = {
        "dew": [part.ours for part in found],
        "torch": [part.torch for part in found],
        "allowed": [part.allowed for part in found],
    }
    places = [part.name for part in found]
    return Plot("errors", "tensor", "root mean square error", lines, places, BARS, True)


def _order(part: Deviation) -> float:
    return part.excess if np.isfinite(part.excess) else float("inf")


def _share(error: float, allowed: float) -> float:
    if allowed == 0:
        return 0.0 if error == 0 else float("inf")
    return error / allowed


def _errors(found: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Return the root mean square error and the largest one."""
    difference = np.abs(found.astype(np.float64) - exact.astype(np.float64))
    largest = float(difference.max()) if difference.size else 0.0
    return float(np.sqrt(np.mean(np.square(difference)))), largest
