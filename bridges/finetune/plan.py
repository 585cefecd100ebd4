"""How many rows, updates and microbatches a run takes: one place for every unit.

Hugging Face counts optimizer updates, dew's trainer microbatches. Settings are in updates;
`Plan` holds both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dew.cli.command import Settings
from dew.errors import InputRefused


@dataclass(frozen=True)
class Plan:
    """The sizes of a run.

    Args:
        records: rows of one epoch; 0 where they are streamed and nobody counted them.
        rows: rows of one microbatch, over all devices.
        eval_rows: rows of one evaluation batch, over all devices.
        accumulation: microbatches an update.
        updates_per_epoch: updates that see every row once, rounded up.
        updates: updates of the whole run.
        log_every, eval_every, save_every: in microbatches; None for never.
    """

    records: int
    rows: int
    eval_rows: int
    accumulation: int
    updates_per_epoch: int
    updates: int
    log_every: int
    eval_every: int | None
    save_every: int | None

    @property
    def microbatches(self) -> int:
        """Microbatches of the whole run."""
        return self.updates * self.accumulation

    def epoch(self, microbatches: int) -> float:
        """Return the passes over the data that so many microbatches make.

        Of a stream it is the share of the run, as transformers has it.
        """
        if not self.records:
            return round(microbatches / self.microbatches, 4)
        return round(microbatches * self.rows / self.records, 4)


def plan_of(settings: Settings, *, records: int, devices: int, held_out: bool) -> Plan:
    """Return the sizes that the settings ask for.

    Args:
        settings: of `dew finetune`.
        records: training rows of one epoch.
        devices: how many the batch is spread over.
        held_out: whether there is data to evaluate on.

    Raises:
        InputRefused: no update at all, or evaluation asked for without data.
    """
    accumulation = settings["gradient_accumulation_steps"]
    rows = settings["per_device_train_batch_size"] * devices
    per_epoch = max(1, math.ceil(records / rows / accumulation))
    updates = settings["max_steps"]
    if not records and updates <= 0:
        raise InputRefused(
            "the rows of a stream are not counted, so num_train_epochs says nothing; give "
            "--max_steps"
        )
    if not records and "epoch" in (settings["eval_strategy"], settings["save_strategy"]):
        raise InputRefused(
            "the rows of a stream are not counted, so it has no epochs; give eval_strategy and "
            "save_strategy as steps or no"
        )
    if updates <= 0:
        updates = math.ceil(settings["num_train_epochs"] * records / rows / accumulation)
    if updates <= 0:
        raise InputRefused(
            f"max_steps is {settings['max_steps']} and num_train_epochs "
            f"{settings['num_train_epochs']}: no update to make; raise one of them"
        )
    if settings["eval_strategy"] != "no" and not held_out:
        raise InputRefused(
            f"eval_strategy is {settings['eval_strategy']!r} but nothing is held out; give "
            "--eval_data or --eval_split"
        )
    eval_steps = settings["eval_steps"] or settings["logging_steps"]
    return Plan(
        records=records,
        rows=rows,
        eval_rows=settings["per_device_eval_batch_size"] * devices,
        accumulation=accumulation,
        updates_per_epoch=per_epoch,
        updates=updates,
        log_every=settings["logging_steps"] * accumulation,
        eval_every=_every(settings["eval_strategy"], eval_steps, per_epoch, accumulation),
        save_every=_every(
            settings["save_strategy"], settings["save_steps"], per_epoch, accumulation
        ),
    )


def _every(strategy: str, steps: int, per_epoch: int, accumulation: int) -> int | None:
    updates = {"no": None, "steps": steps, "epoch": per_epoch}[strategy]
    return None if updates is None else updates * accumulation
