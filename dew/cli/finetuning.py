"""`dew.finetune`: the command of that name, called from Python."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from dew.errors import InputRefused, shown

HELD = "data.jsonl"
HIDDEN = ".dew"
REWARDS = {"reward", "reward_funcs"}
"""The settings that may be functions."""


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: its output folder, which `bridges.load`, `dew.pipeline` and transformers read.
        results: its scores and times by Hugging Face's names.
    """

    folder: Path
    results: Mapping[str, Any]

    def pipeline(self, **options: Any) -> Any:
        """Return the inference task of the trained model; see `dew.pipeline`."""
        from dew.cli.source import merged_copy
        from dew.inference.tasks import pipeline

        return pipeline(merged_copy(str(self.folder)), **options)


def finetune(
    model: Any,
    data: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None,
    output_dir: str | os.PathLike[str],
    **settings: Any,
) -> Run:
    """Train a checkpoint on a table or on texts, and write it back.

    The same call goes on where it stopped, to the same end.

    Args:
        model: a folder, a file, a hub id; or a bundle, which is loaded again from where it came.
        data: a file, a folder, a hub id; or rows, which are kept in the output folder so that a
            run that goes on has them too; None where `datasets` names several sources.
        output_dir: where everything goes.
        **settings: the flags of `dew finetune` by name, such as `task`, `max_steps` and
            `learning_rate`. `reward` takes functions too, called as trl calls them; the folder
            keeps their names alone.

    Returns:
        The run.

    Raises:
        InputRefused: settings, a model, data or a folder that cannot be used.
        RuntimeError: the result was written and differs from transformers' (`certify`).
        SystemExit: SIGINT or SIGTERM came; everything was saved, and the same call goes on.
    """
    from dew.cli.main import GROUP
    from dew.cli.options import settings_from

    points = {point.name: point for point in entry_points(group=GROUP)}
    if "finetune" not in points:
        raise InputRefused("finetune: nothing installed offers it; install bridges")
    source = getattr(model, "source", model)
    if not isinstance(source, str | os.PathLike) or not os.fspath(source):
        raise InputRefused(
            f"finetune: the model is {shown(model, 60)}; expected a folder, a file, a hub id, or "
            "a bundle that was loaded from one"
        )
    folder = Path(output_dir)
    if data is not None and not isinstance(data, str | os.PathLike):
        data = _kept(data, folder)
    command = points["finetune"].load()
    settings, functions = _rewards_by_name(settings)
    given = {
        "model_name_or_path": os.fspath(source),
        "dataset_name": None if data is None else os.fspath(data),
        "output_dir": os.fspath(folder),
        **settings,
    }
    merged = replace(settings_from(command, given, "the arguments"), objects=functions)
    status = command.function()(merged)
    if status == 1:
        raise RuntimeError(f"{folder}: written, and not equal to transformers; see parity.json")
    if status:
        raise SystemExit(status)  # a signal ended it, once all was saved
    results = json.loads((folder / "all_results.json").read_text(encoding="utf-8"))
    return Run(folder, results)


def _rewards_by_name(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings with names in place of functions, and the functions by these names."""
    out, functions = dict(settings), {}
    for name in REWARDS & out.keys():
        given = out[name]
        each = list(given) if isinstance(given, list | tuple) else [given]
        for place, reward in enumerate(each):
            if callable(reward):
                where = getattr(reward, "__module__", "__main__")
                each[place] = f"{where}:{getattr(reward, '__qualname__', type(reward).__name__)}"
                functions[each[place]] = reward
        out[name] = each if functions else given
    return out, functions


def _kept(rows: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write rows into a run's folder, and return the file."""
    from dew.config.durable import write_atomic

    try:
        lines = [json.dumps(dict(row), ensure_ascii=False, allow_nan=False) for row in rows]
    except (TypeError, ValueError) as error:
        raise InputRefused(
            f"finetune: rows of texts, numbers and lists are taken from memory; found {error}"
        ) from None
    path = folder / HIDDEN / HELD
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "\n".join(lines) + "\n")
    return path
