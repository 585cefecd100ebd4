"""Scores by the name of a case, held against a reference's."""

from __future__ import annotations

from collections.abc import Mapping

from parity.check import Figure, Finding

Scores = Mapping[str, float | str]
"""A number for each case, or why there is none."""


def compare_scores(ours: Scores, theirs: Scores, *, relative: float, absolute: float) -> Finding:
    """Ask that each case has the reference's number, and none where the reference has none.

    Args:
        ours: dew's scores.
        theirs: the reference's.
        relative: how far apart two numbers may be, for their size; or
        absolute: how far apart they may be whatever their size.
    """
    figures: dict[str, Figure] = {}
    wrong, worst = [], 0.0
    for case, expected in theirs.items():
        found = ours[case]
        figures[case] = found
        if isinstance(found, str) or isinstance(expected, str):
            agrees = isinstance(found, str) and isinstance(expected, str)
        else:
            difference = abs(found - expected)
            worst = max(worst, difference / max(abs(expected), absolute / relative))
            agrees = difference <= max(absolute, relative * abs(expected))
        if not agrees:
            wrong.append(f"{case}: dew {_shown(found)}, the reference {_shown(expected)}")
    figures["relative"] = worst
    return Finding(
        not wrong, figures, "; ".join(wrong), place=wrong[0].split(":")[0] if wrong else ""
    )


def _shown(score: float | str) -> str:
    return score if isinstance(score, str) else f"{score:.9g}"
