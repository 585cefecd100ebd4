"""What a run is made of, once model and data have been read."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridges.finetune.data import open_data, row_length
from bridges.finetune.learner import Learner, learner_of
from bridges.finetune.mesh import batch_parts, mesh_of
from bridges.finetune.method import Method, method_of
from bridges.finetune.optimizer import Optim, optim_of
from bridges.finetune.plan import Plan, plan_of
from dew.cli.command import Settings


@dataclass(frozen=True)
class Parts:
    """One run, ready to train.

    Args:
        settings: as merged.
        folder: where everything goes.
        name: of the run.
        learner: the model as it was loaded, and how it learns.
        data: the `TextDataset`.
        plan: the sizes.
        method: whole model or adapter.
        objective: the loss.
        optimizer: its numbers.
        mesh: how the devices are shared out.
    """

    settings: Settings
    folder: Path
    name: str
    learner: Learner
    data: Any
    plan: Plan
    method: Method
    objective: Any
    optimizer: Optim
    mesh: Any


def read_parts(settings: Settings, folder: Path, name: str) -> Parts:
    """Load the model and the data, tell about them, and plan the run.

    Raises:
        InputRefused: a model, data or sizes that do not fit; no trainable token.
    """
    import bridges

    method = method_of(settings)
    mesh = mesh_of(settings["mesh"])
    parts = batch_parts(mesh)
    bundle = bridges.load(
        settings["model_name_or_path"],
        revision=settings["model_revision"],
        dtype=settings["dtype"],
        mesh=mesh,
    )
    learner = learner_of(bundle, remat=settings["activation_checkpointing"])
    if learner.note is not None:
        print(learner.note, file=sys.stderr)
    seq_len = row_length(settings, learner)
    rows = settings["per_device_train_batch_size"] * parts
    data = open_data(settings, learner, seq_len=seq_len, rows=rows)
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
