"""`TrainState`: everything a run must checkpoint to go on where it stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from dew.objectives.base import EMASpec


@struct.dataclass
class Window:
    """Sums over the microbatches since the last update.

    Args:
        gradients: float32 or wider, shaped as `params["params"]`: the gradients of the totals.
        mass: float32 scalar, the masses.
        count: int32 scalar, how many microbatches.
    """

    gradients: Any
    mass: jax.Array
    count: jax.Array


@struct.dataclass
class TrainState:
    """A run's whole state, a pytree.

    Args:
        step: int32, microbatches accepted.
        microstep: int32, microbatches tried.
        updates: int32, optimizer updates made.
        params: the variables mapping, `{"params": ..., other collections}`.
        opt_state: the optimizer's state over the float32 `params["params"]`.
        ema: `{"params": ...}` with the averaged leaves, None at the others; or None.
        key: the run's key; a step's is this one folded with `microstep`.
        scale: reserved for a loss scale, None.
        accumulation: the pending window, or None where each microbatch is an update.
    """

    step: jax.Array
    microstep: jax.Array
    updates: jax.Array
    params: Any
    opt_state: Any
    ema: Any
    key: jax.Array
    scale: Any = None
    accumulation: Any = None

    @property
    def averaged(self) -> Any:
        """The variables with the averaged leaves laid over.

        Raises:
            ValueError: the objective averages nothing.
        """
        if self.ema is None:
            raise ValueError("this run keeps no average: its objective has no EMASpec (ema=...)")
        return laid_over(self.params, self.ema)


def first_state(
    variables: Mapping[str, Any],
    optimizer: optax.GradientTransformation,
    *,
    key: jax.Array,
    ema: EMASpec | None,
    accumulation: int,
) -> TrainState:
    """Return the state before the first step; under `jit` its arrays are its own.

    Args:
        variables: the variables that a step changes; frozen collections are kept elsewhere.
        optimizer: what turns mean gradients into updates.
        key: the run's key.
        ema: which leaves to average.
        accumulation: microbatches an update.
    """
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
        step=zero,
        microstep=zero,
        updates=zero,
        params=dict(variables),
        opt_state=optimizer.init(wide(variables["params"])),
        ema=None if ema is None else {"params": selected(variables["params"], ema)},
        key=key,
        accumulation=empty_window(variables["params"]) if accumulation > 1 else None,
    )


def empty_window(params: Any) -> Window:
    """Return a window that holds nothing yet."""
    gradients = jax.tree.map(jnp.zeros_like, wide(params))
    return Window(gradients, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))


def wide(tree: Any) -> Any:
    """Return every floating leaf as float32 at least; the others as they are."""

    def widened(leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))

    return jax.tree.map(widened, tree)


def selected(params: Any, ema: EMASpec) -> Any:
    """Return the leaves of `params` that are averaged, None at the others."""

    def chosen(path: Any, leaf: Any) -> Any:
        return leaf if ema.select(path_name(path)) else None

    return jax.tree_util.tree_map_with_path(chosen, params)


def laid_over(variables: Mapping[str, Any], ema: Any) -> dict[str, Any]:
    """Return the variables with the averaged leaves in the place of their own."""
    params = jax.tree.map(
        lambda average, leaf: leaf if average is None else average,
        ema["params"],
        variables["params"],
        is_leaf=lambda node: node is None,
    )
    return {**variables, "params": params}


def path_name(path: Any) -> str:
    """Return a tree path as `layers/mlp/up/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")
