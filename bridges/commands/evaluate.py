"""`dew evaluate`: the scores of a model on data of its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bridges.finetune.settings import DATA, EVAL_BATCH, EVAL_MODEL
from dew.cli.command import Command, Option, Settings

COMMAND = Command(
    "evaluate",
    "score a model on held-out data: perplexity, or what its task is measured by",
    (
        *EVAL_MODEL,
        *DATA,
        EVAL_BATCH,
        Option("seed", "integer", 42, "chooses what eval_split holds out", low=0, section="data"),
        Option("output_dir", "text", None, "where eval_results.json goes", ("output",)),
        Option("use_cpu", "switch", False, "leave accelerators alone"),
    ),
    run="bridges.commands.evaluate:run",
)


def run(settings: Settings) -> int:
    """Print the table, write eval_results.json where asked, and return 0.

    With a run's config.yaml the model is that run's result and the text what the run held out,
    unless flags name others.
    """
    from pathlib import Path

    import bridges
    from bridges.finetune.backend import choose_backend
    from bridges.finetune.scores import scored
    from bridges.finetune.task_choice import task_of
    from dew.cli.source import model_of
    from dew.config.durable import write_json

    choose_backend(settings["use_cpu"])
    source, batch = model_of(settings), settings["per_device_eval_batch_size"]
    told, held, named = evaluated(settings)
    task = task_of(named)
    examples = task.read(named)
    bundle = bridges.load(source, revision=settings["model_revision"], dtype=settings["dtype"])
    task.check_fit(bundle, examples)
    learner = task.learner(bundle, remat=False)
    data = task.data(named, learner, examples, rows=batch, eval_rows=batch)
    rows = data.eval_rows if held else data.rows
    results = scored(
        learner.objective(data.report.seq_len),
        bundle.variables,
        task.batches(rows, batch=batch),
        metrics=task.metrics(learner, task.side(examples, held=held)),
        results=task.results,
    )
    print(_table(f"{source} on {told}", {"rows": len(rows), **results}))
    if settings.origins["output_dir"] == "flag":
        folder = Path(settings["output_dir"])
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "eval_results.json", results)
    return 0


def evaluated(settings: Settings) -> tuple[str, bool, Settings]:
    """Return what is evaluated on, for the table; whether it is a share held out; and where it is.

    The settings that come back name the model that is evaluated, and one source of data.
    """
    from dew.cli.source import model_of

    text, split, parts = settings["dataset_name"], None, settings["datasets"]
    if settings.origins["dataset_name"] != "flag":
        text = settings["eval_data"] or text
        split = None if settings["eval_data"] else settings["eval_split"] or None
    # A flag names another source than those of the file.
    parts = () if text else parts
    named = {"dataset_name": text, "datasets": parts, "eval_data": None, "eval_split": split}
    named["model_name_or_path"] = model_of(settings)
    text = text or ", ".join(str(part.get("path")) for part in parts)
    told = text if split is None else f"{split} of {text}"
    return told, split is not None, replace(settings, values={**settings.values, **named})


def _table(heading: str, results: Mapping[str, Any]) -> str:
    cells = {
        name: f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"
        for name, value in results.items()
    }
    width = max(map(len, cells))
    return "\n".join([heading, *(f"  {name:<{width}}  {cell}" for name, cell in cells.items())])
