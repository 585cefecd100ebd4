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

from dew.nn.convolution import FOLLOWED, STATISTICS
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
        norm = optax.tree.norm(gradients)
        finite = jnp.isfinite(ratio.total) & jnp.isfinite(norm)
        accepted = finite & (state.step == state.microstep)
        window = Window(gradients, ratio.mass.astype(jnp.float32), jnp.ones((), jnp.int32))
        if accumulation > 1:
            window = jax.tree.map(jnp.add, state.accumulation, window)
        full = accepted & (window.count >= accumulation)
        moved, window_norm = _updated(
            full & (window.mass > 0),
            optimizer,
            objective.ema,
            _with_aux(state, aux, accepted),
            window,
        )
        moved = replace(
            moved,
            step=state.step + accepted,
            accumulation=_pending(state.accumulation, window, accepted, full),
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
        window = state.accumulation
        due = (window.count > 0) & (window.mass > 0)
        moved, _ = _updated(due, optimizer, objective.ema, state, window)
        return replace(moved, accumulation=empty_window(state.params["params"]))

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


def _but_statistics(changes: Any) -> Any:
    """Return an optimizer's changes without those that weight decay makes of statistics."""

    def kept(path: Any, change: jax.Array) -> jax.Array:
        last = getattr(path[-1], "key", None) if path else None
        return jnp.zeros_like(change) if last in STATISTICS else change

    return jax.tree_util.tree_map_with_path(kept, changes)


def _updated(
    due: jax.Array,
    optimizer: optax.GradientTransformation,
    ema: EMASpec | None,
    state: TrainState,
    window: Window,
) -> tuple[TrainState, jax.Array]:
    """Return the state after the window's update where `due`, and its mean gradient's norm.

    The update is a loop of one turn or none: XLA changes in place what a loop carries, and copies
    what passes through a conditional: parameters and moments, a tenth of a step.
    """

    def update(turn: jax.Array, carried: tuple) -> tuple:
        params, opt_state, averages, updates, _ = carried
        # Told by the turn, or XLA takes the mean out of the loop and writes all of it.
        share = jnp.where(turn == 0, 1.0 / window.mass, 0.0)
        mean = jax.tree.map(lambda total: total * share.astype(total.dtype), window.gradients)
        changes, opt_state = optimizer.update(mean, opt_state, wide(params))
        moved = optax.apply_updates(wide(params), _but_statistics(changes))
        params = jax.tree.map(lambda old, new: new.astype(old.dtype), params, moved)
        updates = updates + 1
        averages = _followed(ema, averages, params, updates)
        # Without a window the caller has this norm already; one pass over the leaves is saved.
        norm = 0.0 if state.accumulation is None else optax.tree.norm(mean)
        return params, opt_state, averages, updates, jnp.asarray(norm, jnp.float32)

    none = jnp.zeros((), jnp.float32)
    carried = (state.params["params"], state.opt_state, state.ema, state.updates, none)
    params, opt_state, averages, updates, norm = jax.lax.fori_loop(
        0, due.astype(jnp.int32), update, carried
    )
    moved = replace(
        state,
        params={**state.params, "params": params},
        opt_state=opt_state,
        ema=averages,
        updates=updates,
    )
    return moved, norm


def _pending(before: Window | None, window: Window, accepted: jax.Array, full: jax.Array):
    """Return what waits for the next microbatch: nothing where the window is full."""
    if before is None:
        return None
    return jax.tree.map(
        lambda old, new: jnp.where(accepted, jnp.where(full, jnp.zeros_like(new), new), old),
        before,
        window,
    )


def _followed(ema: EMASpec | None, averages: Any, params: Any, updates: Any) -> Any:
    """Return the averages after an update, each stored in its leaf's dtype."""
    if ema is None:
        return None
    decay = jnp.asarray(ema.decay(updates), jnp.float32)

    def average(old: Any, leaf: jax.Array) -> Any:
        if old is None:
            return None
        mixed = decay * wide(old) + (1.0 - decay) * wide(leaf)
        return jnp.where(decay == 1.0, old, mixed.astype(old.dtype))

    return {
        "params": jax.tree.map(average, averages["params"], params, is_leaf=lambda x: x is None)
    }


def _with_aux(state: TrainState, aux: Aux, accepted: jax.Array) -> TrainState:
    """Return the state with the collections that the step replaced, if it was accepted.

    Running statistics lie among the params: their next values are a collection of their own.
    """
    replaced = {name: tree for name, tree in aux.variables.items() if name != FOLLOWED}
    unknown = set(replaced) - (set(state.params) - {"params"})
    if unknown:
        raise ValueError(
            f"Aux.variables replaces {sorted(unknown)}; a step may replace whole collections that "
            f"are not params and not frozen: {sorted(set(state.params) - {'params'})}"
        )
    new = {
        name: jax.tree.map(lambda old, new: jnp.where(accepted, new, old), state.params[name], tree)
        for name, tree in replaced.items()
    }
    if FOLLOWED in aux.variables:
        params, followed = state.params["params"], aux.variables[FOLLOWED]
        new["params"] = _with_statistics(params, followed, accepted)
    return replace(state, params={**state.params, **new})


def _with_statistics(params: Any, followed: Mapping[str, Any], accepted: jax.Array) -> Any:
    """Return the params with the leaves that `followed` holds in their places, if accepted."""
    changed = {}
    for name, new in followed.items():
        old = params[name]
        changed[name] = (
            _with_statistics(old, new, accepted)
            if isinstance(new, Mapping)
            else jnp.where(accepted, new.astype(old.dtype), old)
        )
    return {**params, **changed}


def _learning_rate(opt_state: Any) -> dict[str, jax.Array]:
    """Return the rate of the one `optax.inject_hyperparams` in the state, if there is just one."""
    named = optax.tree_utils.tree_get_all_with_path(opt_state, "learning_rate")
    # Beside the value lies the schedule's own state, under the same name.
    rates = [value for _, value in named if isinstance(value, jax.Array)]
    return {"learning_rate": rates[0]} if len(rates) == 1 else {}
