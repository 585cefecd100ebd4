"""The best evaluation of a run by Hugging Face's settings: which it is, and its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridges.finetune.plan import Plan
from bridges.finetune.task import Task
from dew.cli.command import Settings
from dew.errors import InputRefused
from dew.training.best import Best

SMALLER = ("loss", "perplexity", "wer", "cer", "error", "mse", "mae", "rmse")
"""What the names of scores end in of which less is better."""


def best_of(settings: Settings, plan: Plan, task: Task) -> Best | None:
    """Return what the settings call the best evaluation, or None where they ask for nothing.

    Raises:
        InputRefused: nothing is evaluated, or not where a checkpoint is saved.
    """
    patience, loads = settings["early_stopping_patience"], settings["load_best_model_at_end"]
    if patience is None and not loads and settings["metric_for_best_model"] is None:
        return None
    if plan.eval_every is None:
        raise InputRefused(
            "the best model is to be found, but nothing is evaluated on the way; give "
            "--eval_strategy steps or epoch, and --eval_data or --eval_split"
        )
    if loads and (plan.save_every is None or plan.save_every % plan.eval_every):
        raise InputRefused(
            "load_best_model_at_end needs an evaluation wherever a checkpoint is saved; give "
            "--save_strategy as --eval_strategy, and save_steps a multiple of eval_steps"
        )
    name = (settings["metric_for_best_model"] or "loss").removeprefix("eval_")
    greater = settings["greater_is_better"]
    if greater is None:
        greater = not name.lower().endswith(SMALLER)
    return Best(
        f"val/{task.scored_as(name)}", greater, patience, settings["early_stopping_threshold"]
    )


def best_fields(
    best: Best | None, history: Sequence[Mapping[str, Any]], folder: Path
) -> dict[str, Any]:
    """Return the three fields of trainer_state.json that name the best evaluation so far.

    Args:
        best: what makes one better, or None.
        history: the log's records.
        folder: the run's.
    """
    found: tuple[float, int, float] | None = None
    for record in history if best is not None else ():
        value = record.get(f"eval_{best.score.removeprefix('val/')}") if best else None
        rank = best.rank({best.score: value}) if best and isinstance(value, float) else None
        if rank is not None and record["step"] and (found is None or rank < found[0]):
            found = (rank, record["step"], float(value or 0.0))
    return {
        "best_global_step": None if found is None else found[1],
        "best_metric": None if found is None else found[2],
        "best_model_checkpoint": None if found is None else str(folder / f"checkpoint-{found[1]}"),
    }


def best_state(trainer: Any, checkpoints: Any, state: Any, variables: Any) -> Any:
    """Return the state with the weights of the best checkpoint in place of the last ones.

    Args:
        trainer: the run's.
        checkpoints: the run's `RunCheckpoints`.
        state: the last state.
        variables: what the run was started with, for its frozen collections.
    """
    best = checkpoints.best
    if best is None or best == int(state.updates):
        return state
    template, _ = trainer.beginning().shapes(variables)
    if template.accumulation is not None:
        template = replace(template, accumulation=checkpoints.accumulation_template(best))
    found, _ = checkpoints.restore(trainer.placement.shaped(template), best)
    print(f"best: checkpoint-{best} is exported", flush=True)
    return replace(found, params={**state.params, **found.params})
