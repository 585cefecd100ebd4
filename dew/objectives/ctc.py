"""Connectionist temporal classification: a text's letters, wherever in a sound they are said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from dew.objectives.criteria import Fields, Outputs


@dataclass(frozen=True)
class LetterLoss:
    """-log p of a text's letters under `logits` [N, T, V], summed over all ways to place them.

    A batch holds `labels` [N, S], negative behind a text's end, and `samples` [N], how long each
    sound is.

    Args:
        blank: the letter that parts equal ones, and stands where nothing is said.
        sizes, strides: of the convolutions that make places of samples, in their order.
        reduction: "mean" divides each text's loss by its number of letters and takes the mean over
            texts; "sum" adds the losses of a batch up.

    Source: Graves et al. 2006; the reductions are `torch.nn.functional.ctc_loss`'s.
    """

    blank: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    reduction: str = "mean"
    fields = ("labels", "samples")
    kept = ("logits",)

    def losses(self, outputs: Outputs, batch: Fields) -> tuple[jax.Array, jax.Array]:
        """Return losses and weights, both [N]."""
        logits, labels = outputs["logits"].astype(jnp.float32), batch["labels"]
        beyond = 1.0 - self._real(logits, batch).astype(jnp.float32)
        missing = (labels < 0).astype(jnp.float32)
        letters = jnp.maximum(labels, 0)
        found = optax.ctc_loss(logits, beyond, letters, missing, blank_id=self.blank)
        count, rows = jnp.sum(labels >= 0, axis=1), len(labels)
        if self.reduction == "sum":
            return found * rows, jnp.full(rows, 1.0 / rows)
        return found / jnp.maximum(count, 1), jnp.ones(rows)

    def read(self, outputs: Outputs, batch: Fields) -> dict[str, jax.Array]:
        """Return the likeliest letter of each place as `written` [N, T], the blank behind."""
        logits = outputs["logits"]
        real = self._real(logits, batch)
        return {"written": jnp.where(real, jnp.argmax(logits, axis=-1), self.blank)}

    def places(self, samples):
        """Return how many places so many samples are."""
        for size, stride in zip(self.sizes, self.strides, strict=True):
            samples = (samples - size) // stride + 1
        return samples

    def _real(self, logits: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
        """Return which places are no padding, bool [N, T]."""
        return jnp.arange(logits.shape[1]) < self.places(batch["samples"])[:, None]
