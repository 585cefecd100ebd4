"""Objectives of traced models: the next token, and adapters beside any objective's frozen base."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bridges.torch.checkpoint import TracedBundle
from bridges.torch.lora import Adapter
from dew.artifacts import Artifacts, TokenScores
from dew.errors import InputRefused, shown
from dew.inputs import Field, InputSpec
from dew.objectives.base import Aux, EMASpec, Objective, Ratio, Step
from dew.objectives.lm import target_weights
from dew.objectives.supervised import cross_entropy
from dew.typing import Variables

FROZEN = "frozen"


class TracedLMObjective(Objective):
    """Mean cross entropy of each counted token given those before it, of a traced bundle.

    A batch is that of `dew.objectives.lm.LMObjective`. Padding (`segments` 0) is masked; documents
    that share a row see each other, as in torch's trainers, since a traced model takes no document
    mask: read the data with `pack=False` where they must not.

    Args:
        bundle: a causal language model, from `bridges.load`; it gives the variables too.
        seq_len: L, the number of predictions of a row.
        train: run torch's training mode, in which dropout draws.
        ema: leaves to average, or None.

    Raises:
        InputRefused: `seq_len` is below 1 or beyond the model's positions.
    """

    def __init__(
        self,
        bundle: TracedBundle,
        seq_len: int,
        *,
        train: bool = False,
        ema: EMASpec | None = None,
    ) -> None:
        limit = bundle.position_limit
        if seq_len < 1 or (limit is not None and seq_len > limit):
            raise InputRefused(
                f"seq_len {seq_len} does not fit a model of {limit} positions; choose 1 to {limit}"
            )
        self.bundle = bundle
        self.train = train
        self.ema = ema
        self.inputs = InputSpec(Field("text", (seq_len + 1,)))

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return `variables`, or the bundle's own: nothing is drawn."""
        return self.bundle.variables if variables is None else variables

    def loss(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> tuple[Ratio, Aux]:
        """Return the summed losses in nats over the summed weights of the targets."""
        options: dict[str, Any] = {"mutable": ["buffers"]}
        if self.train:
            options |= {"train": True, "rngs": {"dropout": step.key}}
        scores, changed = self._scores(variables, batch, **options)
        total = jnp.sum(jnp.where(scores.weights > 0, scores.weights * scores.losses, 0.0))
        return Ratio(total, jnp.sum(scores.weights)), Aux({}, dict(changed))

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> TokenScores:
        """Return each target's loss and weight, [B, L] both."""
        return self._scores(variables, batch, mutable=["buffers"])[0]

    def _scores(
        self, variables: Variables, batch: Mapping[str, jax.Array], **options: Any
    ) -> tuple[TokenScores, Mapping[str, Any]]:
        targets, weights = target_weights(batch)
        ids, segments = batch["text"][:, :-1], batch.get("segments")
        real = jnp.ones_like(ids) if segments is None else (segments[:, :-1] != 0).astype(ids.dtype)
        given = self.bundle.taken(input_ids=ids, attention_mask=real)
        output, changed = self.bundle.model.apply(variables, **given, **options)
        if "logits" not in output:
            raise InputRefused(
                f"{self.bundle.family} gives {', '.join(output)} and no logits: its architecture "
                f"{shown(self.bundle.config.get('architectures'))} has no language-model head"
            )
        return TokenScores(cross_entropy(output["logits"], targets), weights), changed


class AdapterObjective(Objective):
    """Any objective of a traced model, with adapters trained and the base frozen.

    `params` holds the adapters, `frozen` the base's params; they are merged on the fly, so that
    gradients reach A and B alone. Other collections, such as buffers, are the objective's.

    Args:
        objective: of the base model, as `TracedLMObjective` or `Supervised`.
        adapter: which modules, from `bridges.torch.lora.adapter_of`.
        ema: adapters to average, or None; the objective's own is not taken.
    """

    frozen = (FROZEN,)

    def __init__(
        self, objective: Objective, adapter: Adapter, *, ema: EMASpec | None = None
    ) -> None:
        self.objective = objective
        self.adapter = adapter
        self.ema = ema
        self.inputs = objective.inputs

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return adapters drawn with `key` beside the base of `variables["params"]`.

        Variables that already hold a `frozen` collection come back as they are.
        """
        if variables is not None and FROZEN in variables:
            return variables
        base = dict(self.objective.init(key, variables))
        params = base.pop("params")
        return {**base, "params": self.adapter.init(key, params), FROZEN: params}

    def applied(self, variables: Variables) -> Variables:
        """Return the variables as the base's objective takes them: the adapters merged."""
        rest = {name: value for name, value in variables.items() if name != FROZEN}
        base = jax.lax.stop_gradient(variables[FROZEN])
        return {**rest, "params": self.adapter.laid_over(base, variables["params"])}

    def loss(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> jax.Array | Ratio | tuple[jax.Array | Ratio, Aux]:
        """Return the base's loss, differentiable in the adapters."""
        return self.objective.loss(self.applied(variables), batch, self._told(step))

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
        applied, told = self.applied(variables), self._told(step)
        return self.objective.preview(applied, batch, told, scored=scored)

    def _told(self, step: Step) -> Step:
        return step if step.ema is None else dataclasses.replace(step, ema=self.applied(step.ema))
