"""Training a model by its named outputs: classifiers, taggers, readers, whatever a head gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dew.artifacts import Artifacts, Predictions, TokenScores
from dew.objectives.base import Aux, EMASpec, Objective, Ratio, Step
from dew.objectives.criteria import Criterion, check_criterion
from dew.typing import Variables

Forward = Callable[
    [Variables, Mapping[str, jax.Array], jax.Array | None],
    tuple[Mapping[str, jax.Array], Mapping[str, Any]],
]
"""`forward(variables, inputs, key)` gives a model's outputs by Hugging Face's names, and the
collections that changed; `key` draws what training draws, and is None where nothing is to be."""
Writer = Callable[[Variables, Mapping[str, jax.Array]], jax.Array]
"""`writer(variables, batch)` gives ids [N, T] that a model writes of a batch; it is traced."""


class OutputsObjective(Objective):
    """The weighted mean loss of a model's named outputs.

    A batch holds the model's inputs by Hugging Face's names and the fields of the criterion. What
    is in neither is not read. An optional `weights`, float32 [N], weighs whole rows: rows that
    fill up a last batch have 0.

    Args:
        forward: runs the model.
        inputs: the names of the inputs it may take, those that a batch lacks left out.
        criterion: the loss.
        axes: names of the parameters' axes, for a layout; see `Objective.logical_axes`.
        begin: what the variables of a loaded model become before the first step.
        ema: leaves to average, or None.
        writer: what the model writes in evaluation, the output `written`; or None.
    """

    def __init__(
        self,
        forward: Forward,
        inputs: tuple[str, ...],
        criterion: Criterion,
        *,
        axes: Mapping[str, Any] | None = None,
        begin: Callable[[Variables], Variables] = dict,
        ema: EMASpec | None = None,
        writer: Writer | None = None,
    ) -> None:
        self.forward = forward
        self.names = inputs
        self.criterion = criterion
        self.axes = dict(axes or {})
        self.begin = begin
        self.ema = ema
        self.writer = writer

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return the variables to begin with: those of a loaded model.

        Raises:
            ValueError: there are none.
        """
        if variables is None:
            raise ValueError("a run by a model's outputs begins with its variables; pass them")
        return self.begin(variables)

    def logical_axes(self) -> Mapping[str, Any]:
        """Return the axes that were given."""
        return self.axes

    def loss(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> tuple[Ratio, Aux]:
        """Return the summed losses over the summed weights."""
        losses, weights, _, changed = self._judged(variables, batch, step.key)
        total = jnp.sum(jnp.where(weights > 0, weights * losses, 0.0))
        return Ratio(total, jnp.sum(weights)), Aux({}, dict(changed))

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> Artifacts:
        """Return each label's loss and weight, and the outputs that metrics read."""
        losses, weights, outputs, _ = self._judged(variables, batch, None)
        read = getattr(self.criterion, "read", None)
        if read is not None:
            kept = read(outputs, batch)
        else:
            kept = {name: outputs[name].astype(jnp.float32) for name in self.criterion.kept}
        kept |= self.written(variables, batch)
        rows = weights.shape[0]
        return TokenScores(losses.reshape(rows, -1), weights.reshape(rows, -1)), Predictions(
            kept, weights
        )

    def written(self, variables: Variables, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Return the ids that the model writes as `written`, or nothing without a writer."""
        return {} if self.writer is None else {"written": self.writer(variables, batch)}

    def _judged(
        self, variables: Variables, batch: Mapping[str, jax.Array], key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, Mapping[str, jax.Array], Mapping[str, Any]]:
        inputs = {name: batch[name] for name in self.names if name in batch}
        outputs, changed = self.forward(variables, inputs, key)
        check_criterion(self.criterion, outputs)
        losses, weights = self.criterion.losses(outputs, batch)
        if batch.get("weights") is not None:
            given = batch["weights"]
            weights = weights * given.reshape(-1, *(1,) * (weights.ndim - 1))
        return losses, weights, outputs, changed
