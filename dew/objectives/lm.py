"""Next-token prediction, of a whole model or of low-rank adapters beside a frozen one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dew.artifacts import Artifacts, TokenScores
from dew.errors import InputRefused
from dew.inputs import Field, InputSpec
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.dropout import streams
from dew.nn.lora import LoRA
from dew.objectives.adapted import LowRankParams
from dew.objectives.base import EMASpec, Objective, Ratio, Step
from dew.objectives.samples import Samples
from dew.objectives.vocabulary_loss import token_losses, total_loss
from dew.typing import Variables

LOGIT_BYTES = 128 * 2**20
"""How many bytes of float32 logits a loss holds at one time."""


class LMObjective(Objective):
    """Mean cross entropy of each counted token given those before it in its document.

    A batch holds `text`, int32 [B, L + 1]; optionally `segments`, int32 [B, L + 1], the document
    of each token and 0 for padding, and `weights`, float32 [B, L + 1], of each token as a target.
    The first token of a document is no target.

    Args:
        model: maps tokens [B, L] to logits [B, L, V].
        seq_len: L, the number of predictions of a row.
        ema: leaves to average, or None.
        chunk: tokens whose logits exist at one time; None fits them into `LOGIT_BYTES`.
        samples: what a preview writes, with the averaged leaves where there are any; None
            previews nothing.

    Raises:
        InputRefused: `seq_len` is below 1 or beyond the model's positions, or the samples are.
    """

    def __init__(
        self,
        model: CausalTransformer,
        seq_len: int,
        *,
        ema: EMASpec | None = None,
        chunk: int | None = None,
        samples: Samples | None = None,
    ) -> None:
        limit = model.position_limit
        if seq_len < 1 or (limit is not None and seq_len > limit):
            raise InputRefused(
                f"seq_len {seq_len} does not fit a model of {limit} positions; choose 1 to {limit}"
            )
        if samples is not None and limit is not None and samples.length > limit:
            raise InputRefused(
                f"the longest of the samples needs {samples.length} positions and the model has "
                f"{limit}; shorten its prompt or max_new_tokens"
            )
        self.model = model
        self.samples = samples
        self.seq_len = seq_len
        self.ema = ema
        self.chunk = chunk or max(1, LOGIT_BYTES // (4 * model.vocab_size))
        self.inputs = InputSpec(Field("text", (seq_len + 1,)))

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return `variables`, or fresh ones drawn with `key`."""
        if variables is not None:
            return variables
        return self.model.init(key, jnp.zeros((1, 1), jnp.int32))

    def logical_axes(self) -> Mapping[str, Any]:
        """Return the model's `parameter_axes`."""
        return {"params": self.model.parameter_axes()}

    def loss(self, variables: Variables, batch: Mapping[str, jax.Array], step: Step) -> Ratio:
        """Return the summed losses in nats over the summed weights of the targets."""
        targets, weights = target_weights(batch)
        hidden, table = self._hidden(variables, batch, step.key)
        rows = hidden.reshape(-1, hidden.shape[-1])
        flat = weights.reshape(-1)
        chunk, cap = self._chunk(len(rows)), self.model.logit_cap
        total = total_loss(rows, table, targets.reshape(-1), flat, chunk, cap)
        return Ratio(jnp.asarray(total), jnp.sum(flat))

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> TokenScores:
        """Return each target's loss and weight, [B, L] both."""
        targets, weights = target_weights(batch)
        hidden, table = self._hidden(variables, batch)
        rows = hidden.reshape(-1, hidden.shape[-1])
        chunk, cap = self._chunk(len(rows)), self.model.logit_cap
        losses = token_losses(rows, table, targets.reshape(-1), chunk=chunk, cap=cap)
        return TokenScores(losses.reshape(targets.shape), weights)

    def preview(
        self,
        variables: Variables,
        batch: Mapping[str, jax.Array],
        step: Step,
        *,
        scored: Artifacts | None = None,
    ) -> Artifacts | None:
        """Return what the model writes after each prompt of `samples`, on process 0."""
        if self.samples is None:
            return None
        written_by = variables if step.ema is None else step.ema
        return self.samples.draw(self.model, self.applied(written_by), step.key)

    def applied(self, variables: Variables) -> Variables:
        """Return the variables as the model takes them."""
        return variables

    def _chunk(self, tokens: int) -> int:
        """Return the tokens of each of the fewest equal chunks: a short last one costs a whole."""
        return -(-tokens // -(-tokens // self.chunk))

    def _hidden(
        self,
        variables: Variables,
        batch: Mapping[str, jax.Array],
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        segments = batch.get("segments")
        out: Any = self.model.apply(
            self.applied(variables),
            batch["text"][:, :-1],
            segments=None if segments is None else segments[:, :-1],
            method="hidden_and_table",
            rngs=streams(self.model, key),
        )
        hidden, table = out
        return hidden, table.astype(hidden.dtype)


class LoRAObjective(LowRankParams, LMObjective):
    """`LMObjective` that trains adapters: `params` holds them, `frozen` the base model's params.

    Args:
        model: the base model; its low-rank path is switched on with `lora`'s scale.
        seq_len: L, the number of predictions of a row.
        lora: rank, alpha and the modules that are adapted.
        options: those of `LMObjective`.
    """

    def __init__(self, model: CausalTransformer, seq_len: int, lora: LoRA, **options: Any) -> None:
        super().__init__(model.clone(adapter_scale=lora.scale), seq_len, **options)
        self.lora = lora

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return adapters drawn with `key` beside the base of `variables["params"]`.

        Variables that hold an adapter already, under `lora`, go on from it; those that hold a
        `frozen` collection come back as they are.
        """
        return self.begun(key, variables, super().init)

    def logical_axes(self) -> Mapping[str, Any]:
        """Return the base model's axes; the adapters are small."""
        return {"frozen": self.model.parameter_axes()}

    def loss(self, variables: Variables, batch: Mapping[str, jax.Array], step: Step) -> Ratio:
        """Return `LMObjective`'s loss, with the adapters' dropout drawn from the step's key."""
        return super().loss(self.drawing(variables, step), batch, step)


def target_weights(batch: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Return the targets int32 [B, L] of a batch and their float32 weights [B, L].

    A target counts if it is real and of the same document as the token before it.
    """
    text = batch["text"]
    targets = text[:, 1:]
    weights = jnp.ones(targets.shape, jnp.float32)
    segments = batch.get("segments")
    if segments is not None:
        same = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] != 0)
        weights = weights * same
    if batch.get("weights") is not None:
        weights = weights * batch["weights"][:, 1:]
    return targets, weights
