"""Training an encoder with a decoder to write: the loss of each label, a chunk at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dew.artifacts import Artifacts, Predictions, TokenScores
from dew.nn.dropout import streams
from dew.objectives.base import Aux, Ratio, Step
from dew.objectives.criteria import ClassLoss
from dew.objectives.log_probs import LOGIT_BYTES
from dew.objectives.outputs import OutputsObjective, Writer
from dew.objectives.vocabulary_loss import token_losses, total_loss
from dew.typing import Variables

BIASES = ("head_bias", "encoder_distance", "decoder_distance")
"""What is added to logits or scores: no weight decay shrinks it."""
FIXED = "head_bias"
"""What is added to the logits and stays as it is: a buffer of torch's models, no parameter."""


@dataclass(frozen=True)
class LabelLoss(ClassLoss):
    """`ClassLoss` of a model whose logits no metric reads: those of a vocabulary are large."""

    kept = ()


class AnswerObjective(OutputsObjective):
    """The mean loss of the labels that an encoder's decoder is to write, in nats.

    A batch holds the encoder's inputs, `decoder_input_ids` and `labels`, int32 [N, T] both, a
    negative label not counted; and perhaps `weights`, float32 [N]. The logits of one chunk of
    labels exist at a time, so that memory is `chunk` times the vocabulary.

    Args:
        model: an `EncoderDecoderBase`.
        chunk: labels whose logits exist at one time; None fits them into `LOGIT_BYTES`.
        writer: what the model writes in evaluation, or None.
        axes: names of the parameters' axes, for a layout.
    """

    def __init__(
        self,
        model: Any,
        *,
        chunk: int | None = None,
        writer: Writer | None = None,
        axes: Mapping[str, Any] | None = None,
    ) -> None:
        def forward(variables: Variables, inputs: Mapping[str, Any], key: Any) -> Any:
            return model.apply(variables, **inputs, method="outputs"), {}

        super().__init__(forward, model.input_names, LabelLoss(), axes=axes, writer=writer)
        self.model = model
        self.chunk = chunk

    def loss(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> tuple[Ratio, Aux]:
        """Return the summed losses over the number of labels."""
        hidden, table, targets, weights = self._rows(variables, batch, step.key)
        total: Any = total_loss(hidden, table, targets, weights, self._chunk(table, targets))
        return Ratio(total, jnp.sum(weights)), Aux()

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> Artifacts:
        """Return each label's loss and weight, and the ids that are written."""
        hidden, table, targets, weights = self._rows(variables, batch)
        losses = token_losses(hidden, table, targets, chunk=self._chunk(table, targets))
        shape = batch["labels"].shape
        weights = weights.reshape(shape)
        scores = TokenScores(losses.reshape(shape), weights)
        return scores, Predictions(self.written(variables, batch), weights)

    def _chunk(self, table: jax.Array, targets: jax.Array) -> int:
        size = self.chunk or max(1, LOGIT_BYTES // (4 * table.shape[0]))
        return min(size, len(targets))

    def _rows(
        self,
        variables: Variables,
        batch: Mapping[str, jax.Array],
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Return states [N T, D], the head's table [V, D], targets and weights [N T]."""
        inputs = {name: batch[name] for name in self.names if name in batch}
        params = {
            name: jax.lax.stop_gradient(leaf) if name == FIXED else leaf
            for name, leaf in variables["params"].items()
        }
        hidden, table = self.model.apply(
            {**variables, "params": params},
            inputs,
            method=hidden_and_table,
            rngs=streams(self.model, key),
        )
        labels = batch["labels"]
        weights = (labels >= 0).astype(jnp.float32)
        if batch.get("weights") is not None:
            weights = weights * batch["weights"][:, None]
        rows = hidden.reshape(-1, hidden.shape[-1])
        return rows, table, jnp.maximum(labels, 0).reshape(-1), weights.reshape(-1)


def hidden_and_table(model: Any, inputs: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Return states [N, T, D] and a table [V, D] whose product are the logits.

    A fixed bias of the logits is one more column, of states that are 1 there.

    Args:
        model: a bound `EncoderDecoderBase`.
        inputs: by Hugging Face's names.
    """
    mask = inputs.get("attention_mask")
    if "input_features" in inputs:
        memory = model.encode(inputs["input_features"])
    else:
        memory = model.encode(inputs["input_ids"], mask)
    hidden = model.decoded(
        inputs["decoder_input_ids"], inputs.get("decoder_attention_mask"), memory, mask
    )
    if model.logit_scale != 1.0:
        hidden = hidden * jnp.asarray(model.logit_scale, hidden.dtype)
    table = (model.output() if model.has_own_table else model.embed()).astype(hidden.dtype)
    if model.head_bias:
        bias = model.logit_bias[0].astype(hidden.dtype)[:, None]
        table = jnp.concatenate([table, bias], axis=1)
        hidden = jnp.concatenate([hidden, jnp.ones((*hidden.shape[:2], 1), hidden.dtype)], axis=2)
    return hidden, table
