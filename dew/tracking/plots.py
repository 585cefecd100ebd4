"""Pictures of a journal: losses and perplexities over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Points = list[tuple[int, float]]


def plot_scalars(records: Sequence[Mapping[str, Any]], directory: Path) -> list[Path]:
    """Draw `loss.png` and `perplexity.png` for what the records hold of either.

    A value that is not finite breaks the curve and is marked at the foot of the plot.

    Args:
        records: journal lines, `{"step": ..., name: value}`.
        directory: where the files go.

    Returns:
        The files written.
    """
    groups = {"loss": "loss (nats per target)", "perplexity": "perplexity"}
    written = []
    for name, label in groups.items():
        curves = curves_of(records, name)
        if curves:
            directory.mkdir(parents=True, exist_ok=True)
            written.append(_draw(curves, label, directory / f"{name}.png"))
    return written


def curves_of(records: Sequence[Mapping[str, Any]], name: str) -> dict[str, Points]:
    """Return (step, value) in order by the full name of every scalar that ends in `name`.

    A step that a resumed run logged again counts as it was logged last.
    """
    curves: dict[str, dict[int, float]] = {}
    for record in records:
        for key, value in record.items():
            if key.rsplit("/", 1)[-1] == name:
                curves.setdefault(key, {})[record["step"]] = float(value)
    return {key: sorted(points.items()) for key, points in curves.items()}


def _draw(curves: Mapping[str, Points], label: str, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

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
