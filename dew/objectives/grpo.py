"""Group relative policy optimisation: completions against the others of their prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.artifacts import Artifacts, TextSamples
from dew.errors import InputRefused
from dew.inputs import Field, InputSpec
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.base import Aux, Objective, Ratio, Step
from dew.objectives.log_probs import TokenLogProbs, token_log_probs
from dew.objectives.preference import REFERENCE
from dew.sampling.rollout import Rollout, rollout, sampling_rules
from dew.typing import Variables

DEVIATION_FLOOR = 1e-4
"""Added to a deviation of rewards before it divides, as trl does."""

LOSS_TYPES = ("dapo", "grpo", "dr_grpo")
SCALES = ("group", "batch", "none")


class GRPOObjective(Objective):
    """-min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + beta r KL, at each completion token.

    r is a token's probability under the policy over that under the policy that drew it, both under
    the distribution it was drawn from: temperature, top-k and top-p included. A is the advantage
    of its completion. KL is the estimate exp(q - p) - (q - p) - 1 from the log-probabilities p of
    the policy and q of the reference, over the temperature alone, since another distribution's
    top-k may rule a token out; r before it makes its gradient that of the divergence. The reference
    is the parameters a run started from, kept as an average of decay 1 where beta is above 0.

    `loss_type` says how tokens add up: "dapo", the mean over all tokens of an update; "grpo", the
    mean over completions of each one's mean; "dr_grpo", the sum over completions times
    `new_tokens`.

    A batch holds `text`, int32 [B, P + T]: prompts at the right end of P slots and what follows;
    `mask` [B, P + T], nonzero where a token is real; `advantages` and `rewards`, float32 [B]; and,
    where a batch is used for more than one step, `old_log_probs`, float32 [B, T]. Without it the
    policy is taken to be the one that drew, so r is 1 and only its gradient counts. `GRPORollouts`
    makes such batches; a batch to evaluate holds `prompt` and `prompt_mask` [N, P].

    Args:
        model: maps tokens [B, L] to logits.
        prompt_length: P.
        new_tokens: T.
        group: completions of each prompt, at least 2.
        beta: weight of the KL; 0 keeps no reference.
        correct_kl: whether the KL counts times r, trl's `use_bias_correction_kl`.
        epsilon: how far below 1 a ratio still counts; `epsilon_high` above 1, None the same.
        loss_type: one of `LOSS_TYPES`.
        scale_rewards: what divides an advantage: the deviation of its "group", of the "batch", or
            "none".
        iterations: steps that each batch is used for.
        temperature, top_k, top_p: how completions are drawn; see `rollout`.
        ends: ids that end a completion; `pad` stands after one.
        chunk: tokens whose logits exist at one time, or None.

    Raises:
        InputRefused: settings out of range, all at once.

    Source: Shao et al. 2024, arXiv:2402.03300; Yu et al. 2025, arXiv:2503.14476 (dapo); Liu et al.
    2025, arXiv:2503.20783 (dr_grpo); DeepSeek-AI 2025, arXiv:2512.02556 (r before KL). Names and
    defaults as trl 1.16's GRPOConfig, whose losses these are.
    """

    def __init__(
        self,
        model: CausalTransformer,
        prompt_length: int,
        new_tokens: int,
        *,
        group: int = 8,
        beta: float = 0.0,
        correct_kl: bool = True,
        epsilon: float = 0.2,
        epsilon_high: float | None = None,
        loss_type: str = "dapo",
        scale_rewards: str = "group",
        iterations: int = 1,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        ends: Sequence[int] = (),
        pad: int = 0,
        chunk: int | None = None,
    ) -> None:
        self.model = model
        self.prompt_length = prompt_length
        self.new_tokens = new_tokens
        self.group = group
        self.beta = beta
        self.correct_kl = correct_kl
        self.low, self.high = epsilon, epsilon if epsilon_high is None else epsilon_high
        self.loss_type = loss_type
        self.scale_rewards = scale_rewards
        self.iterations = iterations
        self.temperature = temperature
        self.rules = sampling_rules(temperature, top_k, top_p)
        self.ends, self.pad = tuple(ends), pad
        self.chunk = chunk
        self.ema = REFERENCE if beta else None
        _check(self)
        length = prompt_length + new_tokens
        others = (Field("advantages", ()), Field("rewards", ()))
        self.inputs = InputSpec(Field("text", (length,)), Field("mask", (length,)), others)

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
        """Return the loss as `loss_type` adds it up, and what trl logs beside it."""
        scores = self.log_probs(variables, batch)
        kept = (batch["mask"][:, self.prompt_length :] != 0).astype(jnp.float32)
        old = batch.get("old_log_probs")
        old = jax.lax.stop_gradient(scores.drawn) if old is None else old
        advantages = batch["advantages"][:, None]
        ratio = probability_ratio(scores.drawn, old)
        losses = clipped_losses(ratio, advantages, self.low, self.high)
        metrics = self._metrics(batch, scores, ratio, kept)
        if self.beta:
            divergence = self._divergence(scores, batch, step)
            if self.correct_kl:
                divergence = divergence * ratio
            losses = losses + self.beta * divergence
            metrics["kl"] = _mean(divergence, kept)
        return aggregated(losses, kept, self.loss_type), Aux(metrics)

    def log_probs(self, variables: Variables, batch: Mapping[str, jax.Array]) -> TokenLogProbs:
        """Return the log-probabilities of the completions' tokens, [B, T] each."""
        scores = token_log_probs(
            self.model, variables, batch["text"], batch["mask"], rules=self.rules, chunk=self.chunk
        )
        return TokenLogProbs(*(part[:, self.prompt_length - 1 :] for part in scores))

    def completed(
        self, variables: Variables, prompts: jax.Array, mask: jax.Array | None, key: jax.Array
    ) -> Rollout:
        """Return one completion of each of the prompts, [N, P] tokens and mask."""
        return rollout(
            self.model,
            variables,
            prompts,
            mask,
            steps=self.new_tokens,
            key=key,
            temperature=self.temperature,
            top_k=self.rules.top_k,
            top_p=None if self.rules.top_p is None else float(self.rules.top_p),
            ends=self.ends,
            pad=self.pad,
        )

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> Artifacts:
        """Return one completion of each prompt by the live policy, without the prompt."""
        out = self.completed(variables, batch["prompt"], batch.get("prompt_mask"), step.key)
        return TextSamples(out.tokens[:, self.prompt_length :])

    def _divergence(
        self, scores: TokenLogProbs, batch: Mapping[str, jax.Array], step: Step
    ) -> jax.Array:
        if step.ema is None:
            raise InputRefused(
                "GRPO with beta above 0 compares with its reference, which a run keeps as its "
                "average; pass it as the step's ema"
            )
        reference = self.log_probs(jax.lax.stop_gradient(step.ema), batch).plain
        return divergence_estimate(scores.plain, reference)

    def _metrics(
        self,
        batch: Mapping[str, jax.Array],
        scores: TokenLogProbs,
        ratio: jax.Array,
        kept: jax.Array,
    ) -> dict[str, Any]:
        advantages, rewards = batch["advantages"][:, None], batch["rewards"]
        low = (ratio < 1 - self.low) & (advantages < 0)
        high = (ratio > 1 + self.high) & (advantages > 0)
        scored = (~jnp.isnan(rewards)).astype(jnp.float32)
        rows = jnp.ones(rewards.shape, jnp.float32)
        return {
            "entropy": _mean(scores.entropy, kept),
            "clip_ratio/low_mean": _mean(low, kept),
            "clip_ratio/high_mean": _mean(high, kept),
            "clip_ratio/region_mean": _mean(low | high, kept),
            "completions/mean_length": _mean(jnp.sum(kept, axis=1), rows),
            "reward": _mean(jnp.nan_to_num(rewards), scored),
            "frac_zero_advantage": _mean(advantages[:, 0] == 0, rows),
        }


def probability_ratio(log_probs: jax.Array, old: jax.Array) -> jax.Array:
    """Return exp(log_probs - old), 0 and without gradient where the policy rules a token out."""
    known = jnp.isfinite(log_probs) & jnp.isfinite(old)
    return jnp.where(known, jnp.exp(jnp.where(known, log_probs - old, 0.0)), 0.0)


def clipped_losses(ratio: jax.Array, advantages: jax.Array, low: float, high: float) -> jax.Array:
    """Return -min(r A, clip(r, 1 - low, 1 + high) A) at each token.

    Args:
        ratio: r, [B, T].
        advantages: A, [B, 1].
        low, high: how far from 1 a ratio counts.
    """
    clipped = jnp.clip(ratio, 1 - low, 1 + high)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def divergence_estimate(policy: jax.Array, reference: jax.Array) -> jax.Array:
    """Return exp(q - p) - (q - p) - 1, never negative, whose mean under p is KL(p | q).

    Args:
        policy: p, log-probabilities of drawn tokens, in nats.
        reference: q, those under the reference.

    Source: Schulman 2020, "Approximating KL divergence", the estimator k3.
    """
    gap = reference - policy
    return jnp.exp(gap) - gap - 1


def aggregated(losses: jax.Array, kept: jax.Array, loss_type: str) -> Ratio:
    """Return the losses of tokens [B, T] as the Ratio that `loss_type` makes of them.

    Args:
        losses: what a token without weight holds may be anything.
        kept: float32 [B, T], 1 at the tokens of a completion.
        loss_type: one of `LOSS_TYPES`.
    """
    sums = jnp.sum(jnp.where(kept > 0, losses * kept, 0.0), axis=1)
    if loss_type == "dapo":
        return Ratio(jnp.sum(sums), jnp.sum(kept))
    rows = jnp.float32(len(losses))
    if loss_type == "dr_grpo":
        return Ratio(jnp.sum(sums), rows * losses.shape[1])
    return Ratio(jnp.sum(sums / jnp.maximum(jnp.sum(kept, axis=1), 1.0)), rows)


def group_advantages(rewards: np.ndarray, group: int, scale: str = "group") -> np.ndarray:
    """Return each reward less the mean of its group, over a deviation.

    Args:
        rewards: [N * group], the rewards of one prompt side by side; NaN could not be scored: it
            enters no mean and has advantage 0.
        group: completions of each prompt.
        scale: one of `SCALES`. A deviation is the unbiased one, plus `DEVIATION_FLOOR`.

    Returns:
        float64 [N * group].
    """
    table = np.asarray(rewards, np.float64).reshape(-1, group)
    scored = ~np.isnan(table)
    centred = np.where(scored, table - _row_means(table, scored), 0.0)
    if scale == "none":
        return centred.reshape(-1)
    if scale == "batch":
        spread = np.full_like(table, np.std(table[scored], ddof=1) if scored.sum() > 1 else 0.0)
    else:
        freedom = np.maximum(scored.sum(axis=1, keepdims=True) - 1, 1)
        spread = np.sqrt((centred**2).sum(axis=1, keepdims=True) / freedom)
    return (centred / (spread + DEVIATION_FLOOR)).reshape(-1)


def _row_means(table: np.ndarray, scored: np.ndarray) -> np.ndarray:
    counts = np.maximum(scored.sum(axis=1, keepdims=True), 1)
    return np.where(scored, table, 0.0).sum(axis=1, keepdims=True) / counts


def _mean(values: jax.Array, weights: jax.Array) -> Any:
    fixed = jax.lax.stop_gradient(values)
    return Ratio(jnp.sum(jnp.where(weights > 0, fixed * weights, 0.0)), jnp.sum(weights))


def _check(asked: GRPOObjective) -> None:
    """Refuse settings out of range, all at once."""
    limit, top_k, top_p = asked.model.position_limit, asked.rules.top_k, asked.rules.top_p
    length = asked.prompt_length + asked.new_tokens
    problems = {
        f"{asked.prompt_length} prompt tokens and {asked.new_tokens} new ones for {limit} "
        "positions": min(asked.prompt_length, asked.new_tokens) < 1 or length > (limit or length),
        f"group {asked.group} (2 or more)": asked.group < 2,
        f"beta {asked.beta} (0 or more)": not asked.beta >= 0,
        f"epsilon {asked.low} (0 to 1)": not 0 <= asked.low <= 1,
        f"epsilon_high {asked.high} (0 or more)": not asked.high >= 0,
        f"loss_type {asked.loss_type!r} ({', '.join(LOSS_TYPES)})": (
            asked.loss_type not in LOSS_TYPES
        ),
        f"scale_rewards {asked.scale_rewards!r} ({', '.join(SCALES)})": (
            asked.scale_rewards not in SCALES
        ),
        f"iterations {asked.iterations} (1 or more)": asked.iterations < 1,
        f"temperature {asked.temperature} (above 0)": not asked.temperature > 0,
        f"top_k {top_k} (1 or more)": top_k is not None and top_k < 1,
        f"top_p {top_p} (above 0, to 1)": top_p is not None and not 0 < top_p <= 1,
    }
    wrong = [problem for problem, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise InputRefused(f"GRPO cannot work with {'; '.join(wrong)}")
