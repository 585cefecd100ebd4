"""A loss or gradient that is not finite: the error that stops a run, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.objectives.base import Objective
from dew.training.state import TrainState, path_name
from dew.training.step import loss_gradients


class NonFinite(ArithmeticError):
    """A step whose loss or gradient is NaN or infinite; the state before it was kept."""


def nonfinite_error(
    objective: Objective,
    state: TrainState,
    frozen: Mapping[str, Any],
    batch: Mapping[str, Any],
    *,
    step: int,
    report: Mapping[str, Any],
) -> NonFinite:
    """Return the error for a rejected microbatch, naming the first leaf that is not finite.

    Args:
        objective: whose loss it was.
        state: the state that rejected it, so the one before it but for its counters.
        frozen: the collections beside the state's.
        batch: the microbatch.
        step: which one it was, counted from 1.
        report: the step's report.
    """
    total, mass = float(report["total"]), float(report["mass"])
    variables = {**state.params, **frozen}
    named = {"batch": batch, **variables}
    bad = _first_bad(named)
    where = f"{bad[0]} holds {bad[1]}" if bad else None
    if where is None:
        before = replace(state, step=jnp.int32(step - 1), microstep=jnp.int32(step - 1))
        gradients, _ = jax.jit(loss_gradients, static_argnums=0)(objective, before, frozen, batch)
        bad = _first_bad(gradients)
        where = f"the gradient of params/{bad[0]} holds {bad[1]}" if bad else "only the loss itself"
    return NonFinite(
        f"step {step}: the loss is {total} over a mass of {mass}, or its gradient is not finite. "
        f"First bad leaf: {where}. The state before this step was kept and the last checkpoint is "
        "untouched. Look at the batch, lower the learning rate, or clip the gradients."
    )


def _first_bad(tree: Any) -> tuple[str, str] | None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            continue
        count = int(np.sum(~np.isfinite(np.asarray(leaf, np.float64))))
        if count:
            return path_name(path), f"{count} of {np.size(leaf)} values that are not finite"
    return None
