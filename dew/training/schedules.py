"""Learning rates over the updates of a run, by Hugging Face's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dew.errors import UnknownName, nearest, shown

SCHEDULES = ("linear", "cosine", "constant", "constant_with_warmup")


def learning_rate(
    peak: float, schedule: str, warmup_steps: float, total: int
) -> Callable[[Any], jax.Array]:
    """Return the rate as a function of the update, counted from 0.

    Args:
        peak: the highest rate.
        schedule: one of `SCHEDULES`; "constant" knows no warmup.
        warmup_steps: updates of rising rate; below 1 a share of `total`, rounded up.
        total: updates of the whole run.

    Raises:
        UnknownName: another schedule.

    Source: transformers 5.24 `optimization.py`: rate 0 at update 0 of a warmup, and 0 at `total`.
    """
    if schedule not in SCHEDULES:
        raise UnknownName(
            f"schedule {shown(schedule)}: expected one of {', '.join(SCHEDULES)}"
            f"{nearest(schedule, SCHEDULES)}"
        )
    warmup = warmup_updates(warmup_steps, total) if schedule != "constant" else 0

    def rate(update: Any) -> jax.Array:
        update = jnp.asarray(update, jnp.float32)
        progress = jnp.clip((update - warmup) / max(1, total - warmup), 0.0, 1.0)
        falling = {
            "linear": 1.0 - progress,
            "cosine": 0.5 * (1.0 + jnp.cos(math.pi * progress)),
        }.get(schedule, jnp.ones_like(progress))
        return peak * jnp.where(update < warmup, update / max(1, warmup), falling)

    return rate


def warmup_updates(warmup_steps: float, total: int) -> int:
    """Return the updates of the warmup: a value below 1 is a share of `total`, rounded up."""
    return math.ceil(total * warmup_steps) if warmup_steps < 1 else int(warmup_steps)
