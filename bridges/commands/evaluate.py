"""`dew evaluate`: perplexity of a model on text."""

from __future__ import annotations

from typing import Any

from bridges.finetune.settings import EVAL_BATCH, EVAL_DATA, EVAL_MODEL
from dew.cli.command import Command, Option, Settings

COMMAND = Command(
    "evaluate",
    "measure a model's perplexity on text",
    (
        *EVAL_MODEL,
        *EVAL_DATA,
        EVAL_BATCH,
        Option("output_dir", "text", None, "where eval_results.json goes", ("output",)),
        Option("use_cpu", "switch", False, "leave accelerators alone"),
    ),
    run="bridges.commands.evaluate:run",
)


def run(settings: Settings) -> int:
    """Print the table, write eval_results.json where asked, and return 0."""
    from pathlib import Path

    import bridges
    from bridges.finetune.backend import choose_backend
    from bridges.finetune.data import row_length
    from bridges.finetune.scores import scored
    from bridges.run_folder import write_json
    from dew.data import finite_batches
    from dew.objectives.lm import LMObjective

    choose_backend(settings["use_cpu"])
    bundle = bridges.load(
        settings["model_name_or_path"], revision=settings["model_revision"], dtype=settings["dtype"]
    )
    seq_len = row_length(settings, bundle.model)
    batch = settings["per_device_eval_batch_size"]
    data = bridges.dataset(
        settings["dataset_name"],
        bundle.processor,
        seq_len=seq_len,
        batch=batch,
        text_field=settings["dataset_text_field"],
        pack=settings["packing"],
        max_positions=bundle.model.position_limit,
        vocab_size=bundle.model.vocab_size,
    )
    objective = LMObjective(bundle.model, seq_len)
    results = scored(objective, bundle.variables, finite_batches(data.rows, batch=batch))
    results["eval_tokens"] = data.report.targets
    print(_table(settings, results))
    if settings["output_dir"]:
        folder = Path(settings["output_dir"])
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "eval_results.json", results)
    return 0


def _table(settings: Settings, results: dict[str, Any]) -> str:
    lines = [f"{settings['model_name_or_path']} on {settings['dataset_name']}"]
    lines += [
        f"  {name:<24} {value:,.6g}" if isinstance(value, float) else f"  {name:<24} {value:,}"
        for name, value in results.items()
    ]
    return "\n".join(lines)
