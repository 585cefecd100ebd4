"""What the folders of runs say about them, side by side."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridges.finetune.log import read_log
from bridges.finetune.run_folder import CONFIG, LOG, STATE, is_running
from dew.errors import InputRefused, shown

RESULTS = "train_results.json"
TIMED = ("eval_runtime", "eval_samples_per_second")
SHOWN = 60
HEADINGS = ("run", "task", "from", "updates", "state", "loss", "held out", "last written")


@dataclass(frozen=True)
class Run:
    """One run, as its folder tells it.

    Args:
        folder: where it is.
        settings: its config.yaml.
        records: its log.
        updates: how many were made.
        planned: how many it was to make, where that is known.
        finished: whether it came to its end.
        running: whether a process of this machine is at it.
        touched: seconds since the epoch when its log was last written.
    """

    folder: Path
    settings: dict[str, Any]
    records: list[dict[str, Any]]
    updates: int
    planned: int | None
    finished: bool
    touched: float
    running: bool = False

    @property
    def state(self) -> str:
        """What it is in: "running", "finished" or "stopped"."""
        return "running" if self.running else "finished" if self.finished else "stopped"

    @property
    def scores(self) -> dict[str, float]:
        """The last value of each score in the log, the training loss among them."""
        found: dict[str, float] = {}
        for record in self.records:
            for name, value in record.items():
                score = name == "loss" or (name.startswith("eval_") and name not in TIMED)
                if score and isinstance(value, float):
                    found[name] = value
        return found


def read_run(folder: Path) -> Run:
    """Return the run in a folder.

    Raises:
        InputRefused: the folder holds none.
    """
    from dew.cli.config_file import read_config

    if not (folder / CONFIG).is_file():
        raise InputRefused(
            f"{folder}: no run: expected the output folder of dew finetune, with its {CONFIG}"
        )
    records = read_log(folder / LOG)
    planned = None
    if (folder / STATE).is_file():
        planned = json.loads((folder / STATE).read_text(encoding="utf-8")).get("max_steps")
    log, settings = folder / LOG, dict(read_config(folder / CONFIG))
    if planned is None and isinstance(settings.get("max_steps"), int):
        planned = settings["max_steps"] if settings["max_steps"] > 0 else None
    return Run(
        folder=folder,
        settings=settings,
        records=records,
        updates=max((record.get("step", 0) for record in records), default=0),
        planned=planned,
        finished=(folder / RESULTS).is_file(),
        touched=log.stat().st_mtime if log.is_file() else 0.0,
        running=is_running(folder),
    )


def runs_below(folder: Path) -> list[Run]:
    """Return the runs at and below a folder, the latest first; hidden folders are passed over.

    Raises:
        InputRefused: no such folder, or no run in it.
    """
    if not folder.is_dir():
        raise InputRefused(f"{folder}: no such folder")
    found = []
    for where, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith((".", "checkpoint-"))]
        if CONFIG in names and (LOG in names or STATE in names):
            found.append(read_run(Path(where)))
    if not found:
        raise InputRefused(f"{folder}: no run in it: no folder with a {CONFIG} and a {LOG}")
    return sorted(found, key=lambda run: -run.touched)


def table(runs: Sequence[Run]) -> str:
    """Return a line a run: folder, task, model, updates, state, scores, when."""
    return aligned([HEADINGS, *(cells(run, str(run.folder)) for run in runs)])


def cells(run: Run, name: str) -> tuple[str, ...]:
    """Return what a table says of a run, in the order of `HEADINGS`.

    Args:
        run: which.
        name: what it is called.
    """
    scores = run.scores
    held = [f"{n[5:]} {v:.4g}" for n, v in scores.items() if n.startswith("eval_")]
    total = f"/{run.planned}" if run.planned and run.planned > 0 else ""
    return (
        name,
        str(run.settings.get("task") or "causal-lm"),
        Path(str(run.settings.get("model_name_or_path", "?"))).name,
        f"{run.updates}{total}",
        run.state,
        f"{scores['loss']:.4g}" if "loss" in scores else "",
        ", ".join(held[:3]),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.touched)),
    )


def comparison(folders: Sequence[Path]) -> str:
    """Return the settings and scores in which two runs differ.

    Raises:
        InputRefused: not two folders, or one that is no run.
    """
    if len(folders) != 2:
        raise InputRefused(f"compare takes two output folders, found {len(folders)}")
    one, two = map(read_run, folders)
    rows: list[tuple[str, ...]] = [("", str(one.folder), str(two.folder))]
    for name in dict.fromkeys([*one.settings, *two.settings]):
        values = [run.settings.get(name) for run in (one, two)]
        if values[0] != values[1]:
            rows.append((name, *(shown(value, SHOWN) for value in values)))
    rows.append(("updates", str(one.updates), str(two.updates)))
    for name in dict.fromkeys([*one.scores, *two.scores]):
        values = [run.scores.get(name) for run in (one, two)]
        rows.append((name, *("" if value is None else f"{value:.6g}" for value in values)))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines with columns of one width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
