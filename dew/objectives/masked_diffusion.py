"""Masked diffusion language modelling: a bound on the likelihood from filling in masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dew.artifacts import Artifacts, TextSamples
from dew.errors import InputRefused
from dew.inputs import Field, InputSpec
from dew.nn.backbones.masked_transformer import MaskedTransformer
from dew.objectives.base import EMASpec, Objective, Ratio, Step
from dew.objectives.log_probs import LOGIT_BYTES
from dew.objectives.vocabulary_loss import total_loss
from dew.sampling.unmasking import unmasked
from dew.typing import Variables


class MaskedDiffusionObjective(Objective):
    """The continuous-time bound on -log p(x): the mean over t of 1/t times the masked tokens' loss.

    At time t each token is a mask with probability t (the log-linear schedule, alpha_t = 1 - t,
    whose weight alpha'_t / (1 - alpha_t) is -1/t). The model never predicts a mask and is never
    asked for a token it can see. The rows of a batch take times one batch-th apart, shifted
    together, which lowers the variance and leaves the mean. The value is in nats a token.

    A batch holds `text`, int32 [B, L]; optionally `segments`, int32 [B, L], the document of each
    token and 0 for padding, and `weights`, float32 [B, L]: what weighs 0 is shown and not learned.

    Args:
        model: maps rows with masks to logits of the real tokens.
        seq_len: L.
        sampling_steps: steps in which a sample loses its masks.
        preview_count: rows that a preview writes.
        min_time: the lowest t that is drawn. At 0 the mean is the bound itself, and rare small
            times weigh without limit; the paper's code takes 1e-3.
        ema: leaves to average, or None.
        chunk: tokens whose logits exist at one time, or None.

    Raises:
        InputRefused: settings out of range.

    Source: Sahoo et al. 2024, arXiv:2406.07524, equation 10 and appendix B.
    """

    def __init__(
        self,
        model: MaskedTransformer,
        seq_len: int,
        *,
        sampling_steps: int = 64,
        preview_count: int = 4,
        min_time: float = 1e-3,
        ema: EMASpec | None = None,
        chunk: int | None = None,
    ) -> None:
        fits = 1 <= seq_len <= model.max_seq_len
        if not fits or sampling_steps < 1 or preview_count < 1 or not 0 <= min_time < 1:
            raise InputRefused(
                f"masked diffusion: seq_len {seq_len}, sampling_steps {sampling_steps}, "
                f"preview_count {preview_count}, min_time {min_time}; expected 1 to "
                f"{model.max_seq_len}, 1 or more, 1 or more, and [0, 1)"
            )
        self.model = model
        self.seq_len = seq_len
        self.sampling_steps = sampling_steps
        self.preview_count = preview_count
        self.min_time = min_time
        self.ema = ema
        self.chunk = chunk or max(1, LOGIT_BYTES // (4 * model.vocab_size))
        self.inputs = InputSpec(Field("text", (seq_len,)))

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return `variables`, or fresh ones drawn with `key`."""
        if variables is not None:
            return variables
        return self.model.init(key, jnp.zeros((1, 1), jnp.int32))

    def loss(self, variables: Variables, batch: Mapping[str, jax.Array], step: Step) -> Ratio:
        """Return the weighted losses of the masked tokens over the weights of all tokens."""
        text, segments = batch["text"], batch.get("segments")
        time_key, mask_key = jax.random.split(step.key)
        times = spread_times(time_key, len(text), self.min_time)[:, None]
        weights = jnp.ones(text.shape, jnp.float32)
        if segments is not None:
            weights = weights * (segments != 0)
        if batch.get("weights") is not None:
            weights = weights * batch["weights"]
        masked = (jax.random.uniform(mask_key, text.shape) < times) & (weights > 0)
        seen = jnp.where(masked, self.model.mask_token, text)
        out: Any = self.model.apply(variables, seen, segments=segments, method="hidden_and_table")
        hidden, table = out
        rows = hidden.reshape(-1, hidden.shape[-1])
        counted = jnp.where(masked, weights / times, 0.0).reshape(-1)
        chunk = min(self.chunk, len(rows))
        total = total_loss(rows, table.astype(rows.dtype), text.reshape(-1), counted, chunk)
        return Ratio(jnp.asarray(total), jnp.sum(weights))

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> Artifacts:
        """Return as many written rows as the batch has: samples, not a likelihood."""
        return self._written(variables, len(batch["text"]), step)

    def preview(
        self,
        variables: Variables,
        batch: Mapping[str, jax.Array],
        step: Step,
        *,
        scored: Artifacts | None = None,
    ) -> Artifacts:
        """Return `preview_count` written rows."""
        return self._written(variables, self.preview_count, step)

    def _written(self, variables: Variables, rows: int, step: Step) -> TextSamples:
        mask = self.model.mask_token

        def denoise(tokens: jax.Array) -> jax.Array:
            logits: Any = self.model.apply(variables, tokens)
            return logits

        blank = jnp.full((rows, self.seq_len), mask, jnp.int32)
        tokens = unmasked(denoise, blank, mask_token=mask, steps=self.sampling_steps, key=step.key)
        return TextSamples(tokens)


def spread_times(key: jax.Array, rows: int, lowest: float = 0.0) -> jax.Array:
    """Return float32 [rows] times in (lowest, 1], each uniform, and evenly spread over the rows.

    Source: the low-discrepancy sampler of Kingma et al. 2021, arXiv:2107.00630, appendix I.1.
    """
    shift = jax.random.uniform(key)
    steps = jnp.mod(shift + jnp.arange(rows) / rows, 1.0)
    return lowest + (1.0 - lowest) * (1.0 - steps)
