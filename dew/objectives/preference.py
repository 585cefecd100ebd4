"""Direct preference optimisation: chosen completions against rejected ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dew.artifacts import Artifacts, Representations, TextSamples, TokenScores
from dew.errors import InputRefused
from dew.inputs import Field, InputSpec
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.base import Aux, EMASpec, Objective, Ratio, Step
from dew.objectives.log_probs import prompts_alone, real_tokens, token_log_probs
from dew.sampling.rollout import rollout
from dew.typing import Variables

REFERENCE = EMASpec(decay=lambda updates: 1.0)
"""An average that never moves: an exact copy of the parameters a run started from."""


class PairLogProbs(NamedTuple):
    """Summed log-probabilities of completions, float32 [B] each, in nats."""

    chosen: jax.Array
    rejected: jax.Array


class DPOObjective(Objective):
    """-log sigmoid(beta ((log p/q)(chosen) - (log p/q)(rejected))), averaged over pairs.

    p is the model and q the frozen reference: the parameters that the run started from, kept as
    an average of decay 1. A completion's log-probability is the sum over its tokens. With
    `label_smoothing` e the loss is (1 - e) of that plus e of the same with the pair turned
    around (conservative DPO).

    A batch holds, for X of chosen and rejected, `X`, int32 [B, L]: prompt and completion, and
    `X_completion` [B, L], nonzero at the completion's tokens, its end included; optionally
    `X_mask` [B, L], nonzero where a token is real, which left padding needs, and `weights` [B].

    Args:
        model: maps tokens [B, L] to logits.
        length: L.
        beta: how much a nat of the log-ratio weighs.
        label_smoothing: the assumed share of pairs that are labelled the wrong way round.
        preview_rows: prompts of a batch that a preview continues.
        preview_tokens: by how many tokens, or by half of the model's positions if that is fewer.
        chunk: tokens whose logits exist at one time, or None.

    Raises:
        InputRefused: a length the model cannot hold, or settings out of range.

    Source: Rafailov et al. 2023, arXiv:2305.18290, equation 7; names and defaults as trl 1.16's
    DPOConfig, to whose `sigmoid` loss it is held.
    """

    ema = REFERENCE

    def __init__(
        self,
        model: CausalTransformer,
        length: int,
        *,
        beta: float = 0.1,
        label_smoothing: float = 0.0,
        preview_rows: int = 4,
        preview_tokens: int = 32,
        chunk: int | None = None,
    ) -> None:
        limit = model.position_limit
        problems = [
            problem
            for problem, wrong in (
                (f"length {length} for {limit} positions", not 2 <= length <= (limit or length)),
                (f"beta {beta}", not beta > 0),
                (f"label_smoothing {label_smoothing}", not 0 <= label_smoothing < 0.5),
            )
            if wrong
        ]
        if problems:
            raise InputRefused(
                f"DPO: {', '.join(problems)}; expected a length of 2 or more that fits the model, "
                "beta above 0, label_smoothing in [0, 0.5)"
            )
        self.model = model
        self.length = length
        self.beta = beta
        self.label_smoothing = label_smoothing
        self.preview_rows = preview_rows
        self.preview_tokens = preview_tokens
        self.chunk = chunk
        names = ("chosen_completion", "rejected", "rejected_completion")
        others = tuple(Field(name, (length,)) for name in names)
        self.inputs = InputSpec(Field("chosen", (length,)), others=others)

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return `variables`, or fresh ones drawn with `key`."""
        if variables is not None:
            return variables
        return self.model.init(key, jnp.zeros((1, 1), jnp.int32))

    def logical_axes(self) -> Mapping[str, Any]:
        """Return the model's `parameter_axes`."""
        return {"params": self.model.parameter_axes()}

    def loss(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> tuple[Ratio, Aux]:
        """Return the summed losses of the pairs over their weights, and the rewards' means."""
        policy = self.pair_log_probs(variables, batch)
        chosen, rejected = self._rewards(policy, batch, step)
        weights = _weights(batch, chosen)
        losses = preference_losses(chosen - rejected, self.label_smoothing)
        mass = jnp.sum(weights)

        def mean(values: jax.Array) -> Any:
            return Ratio(jnp.sum(jax.lax.stop_gradient(values) * weights), mass)

        metrics: dict[str, Any] = {
            "rewards/chosen": mean(chosen),
            "rewards/rejected": mean(rejected),
            "rewards/margins": mean(chosen - rejected),
            "rewards/accuracies": mean((chosen > rejected).astype(jnp.float32)),
            "logps/chosen": mean(policy.chosen),
            "logps/rejected": mean(policy.rejected),
        }
        return Ratio(jnp.sum(losses * weights), mass), Aux(metrics)

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> Artifacts:
        """Return each pair's rewards [B, 2], the rejected one's first, with label 1, and its loss.

        So `accuracy` is the share of pairs whose chosen reward is the larger one, and a mean loss
        is the validation loss. A pair without weight has label -1.
        """
        chosen, rejected = self._rewards(self.pair_log_probs(variables, batch), batch, step)
        weights = _weights(batch, chosen)
        losses = preference_losses(chosen - rejected, self.label_smoothing)
        labels = jnp.where(weights > 0, 1, -1).astype(jnp.int32)
        pairs = Representations(jnp.stack([rejected, chosen], axis=1), labels)
        return pairs, TokenScores(losses[:, None], weights[:, None])

    def preview(
        self,
        variables: Variables,
        batch: Mapping[str, jax.Array],
        step: Step,
        *,
        scored: Artifacts | None = None,
    ) -> TextSamples:
        """Return what the live policy makes of the first prompts; the average is the reference."""
        first = {name: value[: self.preview_rows] for name, value in batch.items()}
        tokens, completion = first["chosen"], first["chosen_completion"]
        prompts, real = prompts_alone(tokens, real_tokens(first, "chosen_mask", tokens), completion)
        steps = min(self.preview_tokens, (self.model.position_limit or 2 * self.length) // 2)
        cut = max(0, self.length + steps - (self.model.position_limit or 2 * self.length))
        out = rollout(
            self.model, variables, prompts[:, cut:], real[:, cut:], steps=steps, key=step.key
        )
        return TextSamples(out.tokens[:, -steps:])

    def pair_log_probs(self, variables: Variables, batch: Mapping[str, jax.Array]) -> PairLogProbs:
        """Return the log-probability of each completion, in one pass over both halves."""
        tokens = jnp.concatenate([batch["chosen"], batch["rejected"]])
        completion = jnp.concatenate([batch["chosen_completion"], batch["rejected_completion"]])
        masks = (real_tokens(batch, f"{side}_mask", batch[side]) for side in ("chosen", "rejected"))
        scores = token_log_probs(
            self.model, variables, tokens, jnp.concatenate([*masks]), chunk=self.chunk
        )
        kept = completion[:, 1:] != 0
        return PairLogProbs(*jnp.split(jnp.sum(jnp.where(kept, scores.plain, 0.0), axis=1), 2))

    def _rewards(
        self, policy: PairLogProbs, batch: Mapping[str, jax.Array], step: Step
    ) -> tuple[jax.Array, jax.Array]:
        """Return beta times each completion's log-ratio."""
        if step.ema is None:
            raise InputRefused(
                "DPO compares with its reference, which a run keeps as its average; evaluate with "
                "averaged=state.averaged"
            )
        reference = self.pair_log_probs(jax.lax.stop_gradient(step.ema), batch)
        return (
            self.beta * (policy.chosen - reference.chosen),
            self.beta * (policy.rejected - reference.rejected),
        )


def preference_losses(margins: jax.Array, label_smoothing: float = 0.0) -> jax.Array:
    """Return -(1 - e) log sigmoid(m) - e log sigmoid(-m), in nats.

    Args:
        margins: the chosen reward less the rejected one, any shape.
        label_smoothing: e, in [0, 0.5).
    """
    right, wrong = jax.nn.log_sigmoid(margins), jax.nn.log_sigmoid(-margins)
    return -(1 - label_smoothing) * right - label_smoothing * wrong


def _weights(batch: Mapping[str, jax.Array], like: jax.Array) -> jax.Array:
    given = batch.get("weights")
    return jnp.ones(like.shape, jnp.float32) if given is None else given.astype(jnp.float32)
