"""One microbatch as a pure function of the state: loss, gradients, update, average.

Losses come as sums: total and mass. A window adds the gradients of the totals and the masses
of its microbatches and divides once, so how the examples were cut into microbatches changes
nothing. Everything summed here is float32 or wider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dew.objectives.base import Aux, EMASpec, Objective, Ratio, Step
from dew.training.state import TrainState, Window, empty_window, laid_over, wide

StepFunction = Callable[[TrainState, Any, Any], tuple[TrainState, dict[str, Any]]]


def microstep(
    objective: Objective, optimizer: optax.GradientTransformation, *, accumulation: int
) -> StepFunction:
    """Return `step(state, frozen, batch) -> (state, report)`, to be jitted with state donated.

    A microbatch whose loss or gradient is not finite is rejected: only `microstep` counts it,
    and since `step` has then fallen behind `microstep`, all that follow are rejected too. The
    state stays the one before the fault until the caller has seen the report.

    The report holds scalars: `total` and `mass` of this microbatch, `finite`, `updated` (did an
    update happen), `grad_norm` of the mean gradient of the window (where updated),
    `learning_rate` where the optimizer state names one, and `aux`, the objective's own.
    """

    def step(state: TrainState, frozen: Mapping[str, Any], batch: Mapping[str, jax.Array]):
        gradients, ratio, aux = _gradients(objective, state, frozen, batch)
        norm = optax.global_norm(gradients)
        finite = jnp.isfinite(ratio.total) & jnp.isfinite(norm)
        accepted = finite & (state.step == state.microstep)
        window = Window(gradients, ratio.mass.astype(jnp.float32), jnp.ones((), jnp.int32))
        if accumulation > 1:
            window = jax.tree.map(jnp.add, state.accumulation, window)
        full = window.count >= accumulation
        branches = [_unchanged, _updated(optimizer, objective.ema)]
        if accumulation > 1:
            branches.append(_accumulated)
        moved, window_norm = jax.lax.switch(
            jnp.where(accepted, jnp.where(full, 1, 2), 0),
            branches,
            replace(state, params=_with_aux(state.params, aux)),
            state,
            window,
        )
        attempted = replace(moved, microstep=state.microstep + 1)
        report = {
            "total": ratio.total,
            "mass": ratio.mass,
            "finite": finite,
            "updated": moved.updates > state.updates,
            "grad_norm": norm / window.mass if accumulation == 1 else window_norm,
            "aux": dict(aux.metrics),
            **_learning_rate(moved.opt_state),
        }
        return attempted, report

    return step


def flush(objective: Objective, optimizer: optax.GradientTransformation) -> Callable:
    """Return `flush(state) -> state`, which applies a window that is not full."""

    def apply(state: TrainState) -> TrainState:
        pending = state.accumulation.count > 0
        keep, update = _unchanged, _updated(optimizer, objective.ema)
        window = state.accumulation
        # The update counts the microbatch at hand, and here there is none.
        moved, _ = jax.lax.cond(pending, update, keep, state, state, window)
        return replace(moved, step=state.step)

    return apply


def loss_gradients(
    objective: Objective, state: TrainState, frozen: Mapping[str, Any], batch: Mapping[str, Any]
) -> tuple[Any, Ratio]:
    """Return the gradients of a microbatch's total and its Ratio, for a look at a fault."""
    gradients, ratio, _ = _gradients(objective, state, frozen, batch)
    return gradients, ratio


def _gradients(objective, state, frozen, batch) -> tuple[Any, Ratio, Aux]:
    variables = {**state.params, **frozen}
    told = Step(
        state.step,
        jax.random.fold_in(state.key, state.microstep),
        None if state.ema is None else laid_over(variables, state.ema),
    )

    def total(params: Any):
        out = objective.loss({**variables, "params": params}, batch, told)
        loss, aux = out if isinstance(out, tuple) else (out, Aux())
        ratio = Ratio.of(loss)
        return ratio.total, (ratio, aux)

    gradients, (ratio, aux) = jax.grad(total, has_aux=True)(state.params["params"])
    return wide(gradients), ratio, aux


def _unchanged(accepted: TrainState, before: TrainState, window: Window):
    return before, jnp.zeros((), jnp.float32)


def _accumulated(accepted: TrainState, before: TrainState, window: Window):
    return replace(accepted, step=before.step + 1, accumulation=window), jnp.zeros((), jnp.float32)


def _updated(optimizer: optax.GradientTransformation, ema: EMASpec | None) -> Callable:
    def update(accepted: TrainState, before: TrainState, window: Window):
        counted = window.mass > 0
        mass = jnp.where(counted, window.mass, 1.0)
        mean = jax.tree.map(lambda total: total / mass.astype(total.dtype), window.gradients)
        params = accepted.params["params"]
        changes, opt_state = optimizer.update(mean, before.opt_state, wide(params))
        moved = jax.tree.map(
            lambda leaf, new: new.astype(leaf.dtype),
            params,
            optax.apply_updates(wide(params), changes),
        )
        # A window in which nothing counted is no update, and leaves the moments alone too.
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(counted, new, old),
            (moved, opt_state),
            (params, before.opt_state),
        )
        updates = before.updates + counted.astype(jnp.int32)
        empty = None if before.accumulation is None else empty_window(params)
        state = replace(
            accepted,
            step=before.step + 1,
            updates=updates,
            params={**accepted.params, "params": params},
            opt_state=opt_state,
            ema=_followed(ema, before.ema, params, updates, counted),
            accumulation=empty,
        )
        # Without a window the caller has this norm already; one pass over the leaves is saved.
        norm = 0.0 if before.accumulation is None else optax.global_norm(mean)
        return state, jnp.asarray(norm, jnp.float32)

    return update


def _followed(ema: EMASpec | None, averages: Any, params: Any, updates: Any, counted: Any) -> Any:
    """Return the averages after an update, each stored in its leaf's dtype."""
    if ema is None:
        return None
    decay = jnp.where(counted, jnp.asarray(ema.decay(updates), jnp.float32), 1.0)

    def average(old: Any, leaf: jax.Array) -> Any:
        if old is None:
            return None
        mixed = decay * wide(old) + (1.0 - decay) * wide(leaf)
        return jnp.where(decay == 1.0, old, mixed.astype(old.dtype))

    return {
        "params": jax.tree.map(average, averages["params"], params, is_leaf=lambda x: x is None)
    }


def _with_aux(params: Mapping[str, Any], aux: Aux) -> dict[str, Any]:
    unknown = set(aux.variables) - (set(params) - {"params"})
    if unknown:
        raise ValueError(
            f"Aux.variables replaces {sorted(unknown)}; a step may replace whole collections that "
            f"are not params and not frozen: {sorted(set(params) - {'params'})}"
        )
    return {**params, **aux.variables}


def _learning_rate(opt_state: Any) -> dict[str, jax.Array]:
    """Return the rate of the one `optax.inject_hyperparams` in the state, if there is just one."""
    named = optax.tree_utils.tree_get_all_with_path(opt_state, "learning_rate")
    # Beside the value lies the schedule's own state, under the same name.
    rates = [value for _, value in named if isinstance(value, jax.Array)]
    return {"learning_rate": rates[0]} if len(rates) == 1 else {}
