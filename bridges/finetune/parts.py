"""What a run is made of, once model and data have been read."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bridges.finetune.learner import Learner
from bridges.finetune.mesh import batch_parts, mesh_of
from bridges.finetune.method import Method, method_of
from bridges.finetune.optimizer import Optim, optim_of
from bridges.finetune.plan import Plan, plan_of
from bridges.finetune.task import Task
from bridges.finetune.task_choice import task_of
from dew.cli.command import Settings


@dataclass(frozen=True)
class Parts:
    """One run, ready to train.

    Args:
        settings: as merged.
        folder: where everything goes.
        name: of the run.
        task: what it teaches.
        learner: the model as it was loaded, and how it learns.
        data: a dataset with its rows and its report.
        plan: the sizes.
        method: whole model or adapter.
        objective: the loss.
        optimizer: its numbers.
        mesh: how the devices are shared out.
    """

    settings: Settings
    folder: Path
    name: str
    task: Task
    learner: Learner
    data: Any
    plan: Plan
    method: Method
    objective: Any
    optimizer: Optim
    mesh: Any

    @cached_property
    def metrics(self) -> tuple[Any, ...]:
        """What an evaluation scores."""
        examples = getattr(self.data, "examples", None)
        return tuple(self.task.metrics(self.learner, examples))


def read_parts(settings: Settings, folder: Path, name: str) -> Parts:
    """Load the model and the data, tell about them, and plan the run.

    Raises:
        InputRefused: a model, data or sizes that do not fit; no trainable token.
    """
    import bridges
    from bridges.training_mode import as_trained, dropout_lines

    method = method_of(settings)
    mesh = mesh_of(settings["mesh"])
    parts = batch_parts(mesh)
    task = task_of(settings)
    examples = task.read(settings)
    bundle = bridges.load(
        settings["model_name_or_path"],
        revision=settings["model_revision"],
        dtype=settings["dtype"],
        mesh=mesh,
        **task.loading(examples),
    )
    bundle = as_trained(method.prepared(bundle), settings, drops=task.drops)
    for line in dropout_lines(bundle) if task.drops else ():
        print(line, flush=True)
    learner = task.learner(bundle, remat=settings["activation_checkpointing"])
    if learner.note is not None:
        print(learner.note, file=sys.stderr)
    rows = settings["per_device_train_batch_size"] * parts
    eval_rows = settings["per_device_eval_batch_size"] * parts
    data = task.data(settings, learner, examples, rows=rows, eval_rows=eval_rows)
    print(f"\ndata\n{_indented(str(data.report))}", flush=True)
    plan = plan_of(settings, records=data.records, devices=parts, held_out=data.val is not None)
    print(
        f"\nplan\n  {plan.updates} updates of {plan.accumulation} x {plan.rows} rows; "
        f"{plan.updates_per_epoch} updates see every row once\n",
        flush=True,
    )
    return Parts(
        settings=settings,
        folder=folder,
        name=name,
        task=task,
        learner=learner,
        data=data,
        plan=plan,
        method=method,
        objective=method.objective(learner, data.report.seq_len),
        optimizer=optim_of(settings, plan.updates),
        mesh=mesh,
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
