"""Plots as pictures of a page: matplotlib's SVG, and none where it is not installed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bridges.finetune.report import svg_text
from parity.plot import BARS, Plot

LABELLED = 24
"""Up to how many places have their names below them."""
ALLOWED, OURS = "allowed", "dew"


def pictures(title: str, plots: Sequence[Plot]) -> list[str]:
    """Return the plots of one check as SVG, and how far the errors are from what is allowed.

    Args:
        title: of the check.
        plots: what it wants drawn.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    found = []
    for plot in plots:
        figure = Figure(figsize=(7.5, 3.2), layout="constrained")
        axes = figure.subplots()
        _draw(axes, plot)
        axes.set_title(f"{title}: {plot.title}")
        found.append(svg_text(figure))
        shares = _shares(plot)
        if len(shares) > 1:
            figure = Figure(figsize=(7.5, 2.2), layout="constrained")
            axes = figure.subplots()
            axes.hist(shares, bins=30, range=(0, max(1.0, *shares)))
            axes.axvline(1.0, color="C3", linestyle="--", label="allowed")
            axes.set(xlabel="error as a share of what is allowed", ylabel=f"{plot.across}s")
            axes.set_title(f"{title}: all {len(shares)}")
            axes.legend()
            found.append(svg_text(figure))
    return found


def _draw(axes: Any, plot: Plot) -> None:
    count = max((len(heights) for heights in plot.lines.values()), default=0)
    labelled = bool(plot.places) and count <= LABELLED
    width = 0.8 / max(1, len(plot.lines))
    for index, (name, heights) in enumerate(plot.lines.items()):
        shown = [_visible(height, plot.logarithmic) for height in heights]
        if plot.kind == BARS and labelled:
            places = [place + (index + 0.5) * width - 0.4 for place in range(count)]
            axes.bar(places, shown, width, label=name)
        elif plot.kind == BARS:
            axes.plot(shown, linestyle="", marker=".", markersize=3, label=name)
        else:
            axes.plot(shown, marker="." * (count <= LABELLED), label=name)
    if plot.logarithmic and any(
        _visible(height, True) > 0 for heights in plot.lines.values() for height in heights
    ):
        axes.set_yscale("log")
    if labelled:
        slanted = {"rotation": 40, "ha": "right", "fontsize": 7}
        axes.set_xticks(range(count), list(plot.places), **slanted)
    axes.set(xlabel=plot.across, ylabel=plot.up)
    axes.grid(alpha=0.3)
    axes.legend()


def _visible(height: float, logarithmic: bool) -> float:
    """Return a height, or nan where it cannot be drawn: a gap."""
    seen = math.isfinite(height) and (height > 0 or not logarithmic)
    return height if seen else math.nan


def _shares(plot: Plot) -> list[float]:
    """Return our error as a share of what is allowed, of every place where that is a number."""
    if not {OURS, ALLOWED} <= set(plot.lines):
        return []
    pairs = zip(plot.lines[OURS], plot.lines[ALLOWED], strict=True)
    shares = [ours / allowed for ours, allowed in pairs if allowed]
    return [share for share in shares if math.isfinite(share)]
