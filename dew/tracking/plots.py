"""Pictures of a journal: each group of scalars over the steps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Points = list[tuple[int, float]]

_UNITS = {"loss": "loss (nats per target)", "step_seconds": "seconds a step"}


def plot_scalars(records: Sequence[Mapping[str, Any]], directory: Path) -> list[Path]:
    """Draw `<group>.png` for every group of scalars that the records hold.

    A group is what names end in: `train/loss` and `val/loss` share a picture. A value that is
    not finite breaks the curve and is marked at the foot of the plot.

    Args:
        records: journal lines, `{"step": ..., name: value}`.
        directory: where the files go; made if there is anything to draw.

    Returns:
        The files written, by group.
    """
    names = {group_of(name) for record in records for name in record if name != "step"}
    written = []
    for group in sorted(names):
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', group)}.png"
        written.append(_draw(curves_of(records, group), _UNITS.get(group, group), file))
    return written


def group_of(name: str) -> str:
    """Return the last part of a scalar's name."""
    return name.rsplit("/", 1)[-1]


def curves_of(records: Sequence[Mapping[str, Any]], group: str) -> dict[str, Points]:
    """Return (step, value) in order by the full name of every scalar of a group.

    A step that a resumed run logged again counts as it was logged last.
    """
    curves: dict[str, dict[int, float]] = {}
    for record in records:
        for name, value in record.items():
            if name != "step" and group_of(name) == group:
                curves.setdefault(name, {})[record["step"]] = float(value)
    return {name: sorted(points.items()) for name, points in curves.items()}


def _draw(curves: Mapping[str, Points], label: str, path: Path) -> Path:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('drawing plots needs matplotlib: pip install "dew[plots]"') from error
    # A figure of its own, not pyplot's: no display, no global state.
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, points in curves.items():
        steps = [step for step, _ in points]
        finite = [value if math.isfinite(value) else math.nan for _, value in points]
        (line,) = axes.plot(steps, finite, marker="." if len(points) < 50 else None, label=name)
        lost = [step for step, value in points if not math.isfinite(value)]
        if lost:
            axes.plot(
                lost,
                [0.02] * len(lost),
                "x",
                color=line.get_color(),
                transform=axes.get_xaxis_transform(),
                label=f"{name}: not finite",
            )
    axes.set_xlabel("step (microbatches)")
    axes.set_ylabel(label)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return path
