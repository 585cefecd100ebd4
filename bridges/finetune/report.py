"""`report.html`: curves, scores, samples before and after, in one file that needs no other."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bridges.finetune.model_card import versions
from bridges.finetune.samples import Sample
from dew.config.durable import write_atomic

CURVES = (
    ("loss", ("loss", "eval_loss"), "loss"),
    ("reward", ("reward", "eval_reward"), "reward"),
    ("learning rate", ("learning_rate",), "learning rate"),
    ("gradient norm", ("grad_norm",), "norm"),
)
"""Title, the log's names in it, and the axis, of each picture."""
STYLE = """\
 body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
        color: #1b1f24; background: #fff }
 h1, h2 { line-height: 1.2 } h2 { margin-top: 2.5rem }
 table { border-collapse: collapse; margin: 1rem 0 } caption { text-align: left; color: #57606a }
 td, th { border: 1px solid #d0d7de; padding: .3rem .6rem; text-align: left; vertical-align: top }
 td.n { text-align: right; font-variant-numeric: tabular-nums }
 pre { background: #f6f8fa; padding: .8rem; overflow-x: auto; white-space: pre-wrap }
 figure { margin: 1rem 0; break-inside: avoid } svg { max-width: 100%; height: auto }
 @media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117 } pre { background: #161b22 }
  td, th { border-color: #30363d } figure { background: #fff } }
 @media print { body { margin: 0; max-width: none } }
"""
"""How pages look: on a screen in light and in darkness, and on paper."""
PAGE = (
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ name }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
"""
    + STYLE
    + """</style></head><body>
<h1>{{ name }}</h1>
<p>{{ task }}, from <code>{{ source }}</code>: {{ updates }} updates of {{ rows }} rows.</p>
{% if scores %}<h2>Scores</h2>
<table><tr><th></th><th>before</th><th>after</th></tr>
{% for row in scores %}<tr><td>{{ row[0] }}</td><td class="n">{{ row[1] }}</td>
<td class="n">{{ row[2] }}</td></tr>
{% endfor %}</table>{% endif %}
{% if pictures %}<h2>Curves</h2>
{% for picture in pictures %}<figure>{{ picture|safe }}</figure>
{% endfor %}{% endif %}
{% if matrix %}<h2>Which class was taken for which</h2>
<table><caption>Rows: the label. Columns: what the trained model said.</caption>
<tr><th></th>{% for label in matrix.names %}<th>{{ label }}</th>{% endfor %}</tr>
{% for row in matrix.rows %}<tr><th>{{ matrix.names[loop.index0] }}</th>
{% for cell in row %}<td class="n" style="background: rgba(31, 111, 235, {{ cell[1] }})">
{{ cell[0] }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endif %}
{% if samples %}<h2>Before and after</h2>
<table><tr><th>given</th><th>wanted</th><th>before</th><th>after</th></tr>
{% for sample in samples %}<tr><td>{{ sample.asked }}</td><td>{{ sample.wanted }}</td>
<td>{{ sample.before }}</td><td>{{ sample.after }}</td></tr>
{% endfor %}</table>{% endif %}
<h2>Data</h2><pre>{{ data }}</pre>
<h2>Settings</h2><pre>{{ settings }}</pre>
<h2>Versions</h2><ul>{% for line in versions %}<li>{{ line }}</li>{% endfor %}</ul>
</body></html>
"""
)


def write_report(
    path: Path,
    *,
    name: str,
    task: str,
    source: str,
    updates: int,
    rows: int,
    settings: str,
    data: str,
    history: Sequence[Mapping[str, Any]],
    before: Mapping[str, float],
    results: Mapping[str, float],
    samples: Sequence[Sample] = (),
    matrix: tuple[Sequence[str], Any] | None = None,
) -> None:
    """Write the page of a run.

    Args:
        path: where.
        name: of the run.
        task: what it taught.
        source: what it was trained from.
        updates: how many there were.
        rows: of an update.
        settings: the run's YAML.
        data: what became of the data.
        history: the log's records.
        before: scores of the model as it was loaded.
        results: scores of the finished run.
        samples: held-out rows.
        matrix: names of classes, and how often each (row) was taken for each other (column).
    """
    from jinja2 import Environment

    page = Environment(autoescape=True, trim_blocks=True).from_string(PAGE)
    scores = [
        (score, f"{before[score]:.6g}" if score in before else "", f"{value:.6g}")
        for score, value in results.items()
    ]
    text = page.render(
        name=name,
        task=task,
        source=source,
        updates=updates,
        rows=rows,
        settings=settings,
        data=data,
        scores=scores,
        pictures=curves(history),
        samples=samples,
        matrix=None if matrix is None else _shaded(*matrix),
        versions=versions(),
    )
    write_atomic(path, text)


def curves(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the run's curves as SVG; none where matplotlib is absent."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    drawn = {name for _, names, _ in CURVES for name in names}
    drawn |= {"eval_runtime", "eval_samples_per_second"}
    scores = sorted({n for r in history for n in r if n.startswith("eval_")} - drawn)
    more = [(n[5:].replace("_", " "), (n,), "") for n in scores]
    pictures = []
    for title, names, unit in (*CURVES, *more):
        lines = {n: _points(history, n) for n in names}
        if not any(lines.values()):
            continue
        figure = Figure(figsize=(7, 3), layout="constrained")
        axes = figure.subplots()
        for n, points in lines.items():
            if points:
                label = "held out" if n.startswith("eval_") else "training"
                axes.plot(*zip(*points, strict=True), marker="." * (len(points) < 50), label=label)
        axes.set(xlabel="updates", ylabel=unit, title=title)
        axes.grid(alpha=0.3)
        if len(axes.lines) > 1:
            axes.legend()
        pictures.append(svg_text(figure))
    return pictures


def svg_text(figure: Any) -> str:
    """Return a figure of matplotlib as an SVG element of a page."""
    from matplotlib import rc_context

    held = io.StringIO()
    # No date and no drawn ids: the same run gives the same page.
    with rc_context({"svg.hashsalt": "dew"}):
        figure.savefig(held, format="svg", metadata={"Date": None})
    svg = held.getvalue()
    return svg[svg.index("<svg") :]


def _points(history: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(r["step"], r[name]) for r in history if isinstance(r.get(name), float)]


def _shaded(names: Sequence[str], counts: Any) -> dict[str, Any]:
    """Return the cells of a table of counts, each with how dark it is."""
    rows = [
        [(int(cell), f"{0.6 * cell / max(1, row.sum()):.2f}") for cell in row] for row in counts
    ]
    return {"names": list(names), "rows": rows}
