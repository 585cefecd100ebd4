"""Low-rank adapters trained beside a frozen base, whatever the objective."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from dew.artifacts import Artifacts
from dew.nn.lora import LoRA
from dew.objectives.base import Aux, Objective, Ratio, Step
from dew.typing import Variables

FROZEN, LOW, DRAWS = "frozen", "lora", "adapter draws"


class LowRankParams:
    """What objectives over adapters share: `params` holds them, `frozen` the base's params.

    Attributes:
        lora: rank, alpha and the modules that are adapted.
        frozen: the collections that no step changes.
    """

    lora: LoRA
    frozen = (FROZEN,)

    def begun(
        self,
        key: jax.Array,
        variables: Variables | None,
        base_of: Callable[[jax.Array, Variables | None], Variables],
    ) -> Variables:
        """Return the variables to start from.

        Args:
            key: draws the adapters.
            variables: the base's, with an adapter under `lora` where one is to go on; or those of
                a run, which come back.
            base_of: gives the base's from a key where there are none.
        """
        if variables is not None and FROZEN in variables:
            return variables
        base = dict(base_of(key, variables))
        params, low = base.pop("params"), base.pop(LOW, None)
        if low is not None:
            return {**base, "params": self.lora.trained(low, params), FROZEN: params}
        trained, rest = self.lora.begin(key, params)
        return {**base, "params": trained, FROZEN: rest}

    def applied(self, variables: Variables) -> Variables:
        """Return the base as `params` and the adapters as `lora`, as the model takes them."""
        base = jax.lax.stop_gradient(variables[FROZEN])
        trained, key = variables["params"], variables.get(DRAWS)
        others = {k: v for k, v in variables.items() if k not in ("params", FROZEN, DRAWS)}
        return {
            **others,
            "params": self.lora.with_whole(base, trained),
            LOW: self.lora.collection(trained, key),
        }

    def drawing(self, variables: Variables, step: Step) -> Variables:
        """Return the variables with the key of this step's dropout, for `applied` to draw with."""
        return {**variables, DRAWS: step.key} if self.lora.dropout else variables


class AdaptedObjective(LowRankParams, Objective):
    """Any objective of a native model, with adapters trained and the base frozen.

    Args:
        objective: of the base model, such as `Supervised`; its `model` is not changed.
        lora: the adapters. Modules that `lora.sites` has bring their scale; others have that of
            the model's `adapter_scale`.
    """

    def __init__(self, objective: Objective, lora: LoRA) -> None:
        self.objective = objective
        self.lora = lora
        self.ema = objective.ema
        self.inputs = objective.inputs

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return adapters drawn with `key` beside the base's params; see `LoRAObjective.init`."""
        return self.begun(key, variables, self.objective.init)

    def logical_axes(self) -> Mapping[str, Any]:
        """Return the base's axes; the adapters are small."""
        axes = dict(self.objective.logical_axes())
        return {**axes, FROZEN: axes.pop("params")} if "params" in axes else axes

    def loss(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> jax.Array | Ratio | tuple[jax.Array | Ratio, Aux]:
        """Return the base's loss, differentiable in the adapters."""
        held = self.applied(self.drawing(variables, step))
        return self.objective.loss(held, batch, self._told(step))

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> Artifacts | None:
        """Return what metrics score of a batch."""
        return self.objective.evaluate(self.applied(variables), batch, self._told(step))

    def preview(
        self,
        variables: Variables,
        batch: Mapping[str, jax.Array],
        step: Step,
        *,
        scored: Artifacts | None = None,
    ) -> Artifacts | None:
        """Return what a tracker draws."""
        held, told = self.applied(variables), self._told(step)
        return self.objective.preview(held, batch, told, scored=scored)

    def _told(self, step: Step) -> Step:
        if step.ema is None:
            return step
        return dataclasses.replace(step, ema=self.applied(step.ema))
