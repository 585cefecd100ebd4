"""The run's log: `log.jsonl` for programs, history for `trainer_state.json`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from bridges.finetune.plan import Plan
from bridges.finetune.progress import in_updates

# The trainer's names to Hugging Face's.
_NAMES = {
    "train/loss": "loss",
    "train/grad_norm": "grad_norm",
    "train/learning_rate": "learning_rate",
}


class RunLog:
    """A tracker that writes one JSON record a logging step, by Hugging Face's names.

    Args:
        path: `log.jsonl`, or the null device. Records of a run that was killed after
            `updates` are dropped, for they will be written again.
        plan: the sizes of the run.
        results: an evaluation's scores by Hugging Face's names; see `Task.results`.
        updates: where the run goes on.
        tokens: the targets counted after so many microbatches; None logs none.
        lines: where to print each record as JSON too; None prints none.
    """

    on_disk = True  # so that its calls need no watch

    def __init__(
        self,
        path: Path,
        plan: Plan,
        *,
        results: Callable[[Mapping[str, float]], Mapping[str, float]],
        updates: int = 0,
        tokens: Callable[[int], int] | None = None,
        lines: TextIO | None = None,
    ):
        self.history = [record for record in read_log(path) if record.get("step", 0) <= updates]
        if path != Path(os.devnull):
            text = "".join(json.dumps(record) + "\n" for record in self.history)
            aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            aside.write_text(text, encoding="utf-8")
            os.replace(aside, path)
        self._file = path.open("a", encoding="utf-8")
        self._plan, self._tokens, self._lines = plan, tokens, lines
        self._results = results

    def log(self, scalars: Mapping[str, Any], step: int) -> None:
        """Write the scalars of microbatch `step`."""
        record: dict[str, Any] = {"step": step // self._plan.accumulation}
        record["epoch"] = self._plan.epoch(step)
        scores = {n: _number(v) for n, v in scalars.items() if n.startswith("val/")}
        if scores:
            record |= self._results(scores)
        for name, value in in_updates(scalars, self._plan.accumulation).items():
            if not name.startswith(("evaluation/", "val/")):
                record[_renamed(name)] = _number(value)
        if "loss" in record and self._tokens is not None:
            record["num_tokens"] = self._tokens(step)
        self.record(record)

    def record(self, record: dict[str, Any]) -> None:
        """Write a record that has its own step."""
        self.history.append(record)
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if self._lines is not None:
            print(json.dumps(record), file=self._lines, flush=True)

    def artifact(self, value: Any, step: int) -> None:
        """Take no artifacts: the folder holds none."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def losses(self) -> list[float]:
        """Return the training losses, one a logging step."""
        return [record["loss"] for record in self.history if isinstance(record.get("loss"), float)]

    def evaluated(self, step: int) -> dict[str, Any]:
        """Return the scores logged at update `step`, empty where there are none."""
        for record in reversed(self.history):
            scores = {name: v for name, v in record.items() if name.startswith("eval_")}
            if record["step"] == step and scores:
                return scores
        return {}


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the whole records of a log; a last line cut by a kill is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def write_loss_plot(history: list[dict[str, Any]], path: Path) -> bool:
    """Draw training and evaluation loss over the updates; False where matplotlib is absent."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, label in (("loss", "training"), ("eval_loss", "held out")):
        points = [(r["step"], r[name]) for r in history if isinstance(r.get(name), float)]
        if points:
            axes.plot(*zip(*points, strict=True), marker=".", label=label)
    axes.set(xlabel="updates", ylabel="loss, nats a token")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    figure.savefig(path, dpi=120)
    return True


def _renamed(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    group, slash, rest = name.partition("/")
    return f"eval_{rest}" if group == "val" else rest if slash else name


def _number(value: Any) -> Any:
    """Return a JSON number; what is not finite becomes text, as JSON has no NaN."""
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return number
