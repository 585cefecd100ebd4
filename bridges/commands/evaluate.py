"""`dew evaluate`: perplexity of a model on text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridges.finetune.settings import DATA, EVAL_BATCH, EVAL_MODEL
from dew.cli.command import Command, Option, Settings

COMMAND = Command(
    "evaluate",
    "measure a model's perplexity on text",
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
    from bridges.finetune.data import row_length
    from bridges.finetune.learner import learner_of
    from bridges.finetune.scores import scored
    from dew.cli.source import model_of
    from dew.config.durable import write_json
    from dew.data import finite_batches

    choose_backend(settings["use_cpu"])
    source, batch = model_of(settings), settings["per_device_eval_batch_size"]
    bundle = bridges.load(source, revision=settings["model_revision"], dtype=settings["dtype"])
    learner = learner_of(bundle)
    text, rows, seq_len = held_out_rows(settings, learner, row_length(settings, learner))
    objective = learner.objective(seq_len)
    results = scored(objective, bundle.variables, finite_batches(rows, batch=batch))
    print(_table(f"{source} on {text}", {"rows": len(rows), **results}))
    if settings.origins["output_dir"] == "flag":
        folder = Path(settings["output_dir"])
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "eval_results.json", results)
    return 0


def held_out_rows(settings: Settings, learner: Any, seq_len: int) -> tuple[str, Any, int]:
    """Return what is evaluated on, for the table, its rows, and the predicted positions of one."""
    from bridges.finetune.data import read_rows

    text, split = settings["dataset_name"], None
    if settings.origins["dataset_name"] != "flag":
        text = settings["eval_data"] or text
        split = None if settings["eval_data"] else settings["eval_split"] or None
    data = read_rows(settings, learner, text, seq_len=seq_len, batch=1, split=split)
    if split is None:
        return text, data.rows, data.report.seq_len
    return f"{split} of {text}", data.eval_rows, data.report.seq_len


def _table(heading: str, results: Mapping[str, Any]) -> str:
    cells = {
        name: f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"
        for name, value in results.items()
    }
    width = max(map(len, cells))
    return "\n".join([heading, *(f"  {name:<{width}}  {cell}" for name, cell in cells.items())])
