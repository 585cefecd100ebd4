"""The contract between an objective and the trainer: losses as sums, steps, averages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from dew.artifacts import Artifacts
from dew.inputs import InputSpec
from dew.typing import Variables


@struct.dataclass
class Ratio:
    """A loss as its sufficient statistics; Ratios add, and the value is total / mass.

    Args:
        total: scalar, the weighted sum of the losses.
        mass: scalar, the sum of the weights. No gradient flows through it.
    """

    total: jax.Array
    mass: jax.Array

    @classmethod
    def of(cls, loss: jax.Array | Ratio) -> Ratio:
        """Return `loss` itself, or a scalar loss as a Ratio of mass 1."""
        if isinstance(loss, Ratio):
            return cls(loss.total, jax.lax.stop_gradient(loss.mass))
        return cls(loss, jnp.ones((), jnp.float32))

    def __add__(self, other: Ratio) -> Ratio:
        """Return the Ratio of both sets of examples together."""
        return Ratio(self.total + other.total, self.mass + other.mass)

    @property
    def value(self) -> jax.Array:
        """Total / mass, and 0 where nothing counted."""
        counted = self.mass > 0
        return jnp.where(counted, self.total / jnp.where(counted, self.mass, 1.0), 0.0)


@struct.dataclass
class Aux:
    """What a loss returns beside its statistics.

    Args:
        metrics: name to scalar, for the log.
        variables: replacements for whole collections other than `params`.
    """

    metrics: dict[str, jax.Array] = struct.field(default_factory=dict)
    variables: dict[str, Any] = struct.field(default_factory=dict)


@struct.dataclass
class Step:
    """What the trainer tells an objective about the step at hand.

    Args:
        step: int32, microbatches accepted so far.
        key: the run's key folded with the number of attempts, so that no draw comes twice.
        ema: the variables with the averaged leaves laid over them, or None.
    """

    step: jax.Array
    key: jax.Array
    ema: Any = None


@dataclass(frozen=True)
class EMASpec:
    """Which leaves are averaged over the updates, and how fast the average follows.

    Args:
        decay: maps the number of updates so far to the weight of the old average, in [0, 1];
            1 keeps the first value for good.
        select: maps the path of a leaf in `params`, such as "layers/mlp/up/kernel", to whether
            it is averaged.
    """

    decay: Callable[[jax.Array], jax.Array | float]
    select: Callable[[str], bool] = lambda path: True


class Objective:
    """What a trainer optimises. Subclasses define `init` and `loss`; the rest is optional.

    Attributes:
        ema: leaves to average, or None.
        inputs: the fields of a batch, checked on the first one, or None.
        frozen: collections that no step changes. The trainer does not checkpoint them; they come
            back from the variables a run is started with.
    """

    ema: EMASpec | None = None
    inputs: InputSpec | None = None
    frozen: tuple[str, ...] = ()

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return the variables to start from: `variables` itself where they are given."""
        raise NotImplementedError

    def logical_axes(self) -> Mapping[str, Any]:
        """Return collection to a tree of axis names, one tuple a parameter, for a layout's rules.

        What is left out is cut along its longest axis.
        """
        return {}

    def loss(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> jax.Array | Ratio | tuple[jax.Array | Ratio, Aux]:
        """Return the loss of a batch, differentiable in `variables["params"]`."""
        raise NotImplementedError

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> Artifacts | None:
        """Return what metrics score of a batch, or None."""
        return None

    def preview(
        self,
        variables: Variables,
        batch: Mapping[str, jax.Array],
        step: Step,
        *,
        scored: Artifacts | None = None,
    ) -> Artifacts | None:
        """Return what a tracker draws: what was scored of the first batch, unless overridden."""
        return scored if scored is not None else self.evaluate(variables, batch, step)
