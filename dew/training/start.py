"""Where a run begins: fresh, from given variables, or from its last checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dew.checkpoints import Checkpoints
from dew.data import DataPartition
from dew.errors import InputRefused
from dew.objectives.base import Objective
from dew.placement import Placement
from dew.training.state import TrainState, first_state
from dew.typing import Variables

Frozen = dict[str, Any]


class Beginning:
    """Builds the state before a run's next step.

    Args:
        objective: gives the variables, and says which collections are frozen.
        optimizer: its state starts from the float32 params.
        key: the run's key.
        accumulation: microbatches an update.
        placement: where the state goes.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: optax.GradientTransformation,
        *,
        key: jax.Array,
        accumulation: int,
        placement: Placement,
    ):
        self._objective = objective
        self._first = lambda variables, key: first_state(
            variables, optimizer, key=key, ema=objective.ema, accumulation=accumulation
        )
        self._placed = placement
        self._key = key

    def fresh(self, variables: Variables | None) -> tuple[TrainState, Frozen]:
        """Return the first state, in memory of its own, and the frozen collections.

        Args:
            variables: pre-trained ones, or None to draw them. The caller's arrays stay as they
                are: what a step will change is copied, what is frozen is shared.
        """
        shapes, _ = self.shapes(variables)
        learned, frozen = self._parted(self._variables(variables))
        # A copy in any case: a donated step would write over the caller's arrays, and an array
        # made from numpy may share its memory.
        learned = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), learned)
        key = self._placed.put(jnp.copy(self._key))
        first = jax.jit(self._first, out_shardings=self._placed.shardings(shapes))
        return first(learned, key), frozen

    def shapes(self, variables: Variables | None) -> tuple[TrainState, Frozen]:
        """Return the shapes of both, reading and drawing nothing.

        Args:
            variables: arrays or their shapes, or None.

        Raises:
            LayoutRefused: the mesh does not cut them.
        """
        everything = jax.eval_shape(self._objective.init, self._key, variables)
        self._placed.check(everything)
        learned, frozen = self._parted(everything)
        return jax.eval_shape(self._first, learned, self._key), frozen

    def restored(
        self, checkpoints: Checkpoints, variables: Variables | None, share: DataPartition
    ) -> tuple[TrainState, Frozen, bytes | None]:
        """Return the state of the last checkpoint, the frozen collections, the data position."""
        template, frozen = self.shapes(variables)
        if frozen:
            _, frozen = self._parted(self._variables(variables))
        stored = checkpoints.stored()
        template = self._with_stored_window(template, stored)
        if template.ema is None and stored.get("ema") is not None:
            warnings.warn(
                "the checkpoint holds an average that this run does not keep; it is dropped.",
                stacklevel=3,
            )
        state, position = checkpoints.restore(self._placed.shaped(template), share=share)
        if not jnp.array_equal(key_words(state.key), key_words(self._key)):
            raise InputRefused(
                f"{checkpoints.directory} holds a run of another key (seed). Start with the seed "
                "it was begun with, or in another directory."
            )
        return state, frozen, position

    def _with_stored_window(self, template: TrainState, stored: Mapping[str, Any]) -> TrainState:
        kept = stored.get("accumulation") is not None
        if kept != (template.accumulation is not None):
            raise InputRefused(
                "the checkpoint's run accumulated gradients and this one does not, or the other "
                "way round. Go on with the accumulation it was begun with."
            )
        return template

    def _variables(self, variables: Variables | None) -> Variables:
        if variables is not None:
            return self._placed.put(self._objective.init(self._key, variables))
        shapes = jax.eval_shape(self._objective.init, self._key)
        init = jax.jit(self._objective.init, out_shardings=self._placed.shardings(shapes))
        return init(self._placed.put(self._key))

    def _parted(self, variables: Variables) -> tuple[dict[str, Any], Frozen]:
        names = self._objective.frozen
        learned = {name: value for name, value in variables.items() if name not in names}
        frozen = {name: value for name, value in variables.items() if name in names}
        return learned, frozen


def key_words(key: jax.Array) -> jax.Array:
    """Return a key's integers, be it typed or the integers themselves."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(key) if typed else key
