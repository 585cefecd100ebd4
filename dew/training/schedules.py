"""Learning rates over the updates of a run, by Hugging Face's names and with its values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused, UnknownName, nearest, shown
from dew.training.arguments import checked
from dew.training.rate_shapes import SHAPES

SCHEDULES = tuple(SHAPES)

# transformers names these too. They move the rate by what a metric does, and a rate here is a
# function of the update alone: a run that goes on from a checkpoint has the same rates again.
METRIC_SCHEDULES = {
    "reduce_lr_on_plateau": "cosine_with_min_lr, or warmup_stable_decay for a long constant part",
    "greedy": "cosine_with_min_lr",
}

LONGEST_TABLE = 1 << 20


def learning_rate(
    peak: float,
    schedule: str,
    warmup_steps: float,
    total: int,
    arguments: Mapping[str, Any] | None = None,
) -> Callable[[Any], jax.Array]:
    """Return the rate as a function of the update, counted from 0 and held after `total`.

    The rates are computed once in float64 and looked up, so each is its float64 value rounded
    once. Of a run of over a million updates every k-th is kept, and those between lie on the
    line from one to the next.

    Args:
        peak: the highest rate.
        schedule: one of `SCHEDULES`; "constant" knows no warmup.
        warmup_steps: updates of rising rate; below 1 a share of `total`, rounded up.
        total: updates of the whole run.
        arguments: what transformers calls `lr_scheduler_kwargs`.

    Raises:
        UnknownName: another schedule, or an argument it does not take.
        InputRefused: a schedule that follows a metric, or an argument that does not fit.

    Source: `get_scheduler` of transformers 5.24: rate 0 at update 0 of most warmups.
    """
    shape = check_schedule(schedule)
    known = checked(f"schedule {schedule}", arguments, shape.arguments)
    stride = max(1, math.ceil(total / LONGEST_TABLE))
    nodes = np.minimum(np.arange(math.ceil(total / stride) + 1) * stride, total).astype(np.float64)
    warmup = float(warmup_updates(warmup_steps, total))
    table = (peak * shape.factor(nodes, warmup, float(total), peak, **known)).astype(np.float32)
    if np.all(table == table[0]):
        return lambda update: jnp.full(jnp.shape(update), table[0])

    def rate(update: Any) -> jax.Array:
        update = jnp.clip(jnp.asarray(update), 0, total).astype(jnp.int32)
        at, part = update // stride, (update % stride).astype(jnp.float32) / stride
        rates = jnp.asarray(table)
        here = rates[at]
        if stride == 1:
            return here
        return here + part * (rates[jnp.minimum(at + 1, len(table) - 1)] - here)

    return rate


def check_schedule(schedule: str) -> Any:
    """Return the `Shape` of a schedule.

    Raises:
        UnknownName: another name.
        InputRefused: one of transformers' that follows a metric.
    """
    if schedule in METRIC_SCHEDULES:
        raise InputRefused(
            f"schedule {schedule} follows a metric, and rates here are known from the update "
            f"alone; use {METRIC_SCHEDULES[schedule]}"
        )
    if schedule not in SHAPES:
        raise UnknownName(
            f"schedule {shown(schedule)}: expected one of {', '.join(SCHEDULES)}"
            f"{nearest(schedule, SCHEDULES)}"
        )
    return SHAPES[schedule]


def warmup_updates(warmup_steps: float, total: int) -> int:
    """Return the updates of the warmup: a value below 1 is a share of `total`, rounded up."""
    return math.ceil(total * warmup_steps) if warmup_steps < 1 else int(warmup_steps)
