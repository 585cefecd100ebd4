"""What a model's named outputs are held to: the loss of each label, and its weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

from dew.errors import InputRefused
from dew.objectives.supervised import cross_entropy, squared_error

Outputs = Mapping[str, jax.Array]
Fields = Mapping[str, jax.Array]
IGNORED = -100
"""The label that does not count, as torch's cross entropy has it."""


class Criterion(Protocol):
    """Judges a batch.

    One with a method `read(outputs, batch)` says by it what metrics read in place of `kept`.

    Attributes:
        fields: what it reads of a batch beside the model's inputs.
        kept: the outputs that it needs, and that metrics read.
    """

    @property
    def fields(self) -> tuple[str, ...]:
        """See the class."""
        ...

    @property
    def kept(self) -> tuple[str, ...]:
        """See the class."""
        ...

    def losses(self, outputs: Outputs, batch: Fields) -> tuple[jax.Array, jax.Array]:
        """Return the loss of each label, float32, and its weight of the same shape."""
        ...


@dataclass(frozen=True)
class ClassLoss:
    """Cross entropy of `logits` [..., C] at the integers `labels` [...], in nats.

    A negative label does not count.
    """

    fields = ("labels",)
    kept = ("logits",)

    def losses(self, outputs: Outputs, batch: Fields) -> tuple[jax.Array, jax.Array]:
        """Return losses and weights, both of the labels' shape."""
        labels = batch["labels"]
        return cross_entropy(outputs["logits"], labels), (labels >= 0).astype(jnp.float32)


@dataclass(frozen=True)
class IndependentLoss:
    """Binary cross entropy of each of `logits` [N, C] against `labels` [N, C], 0 or 1, in nats.

    The mean is over records and labels, as `BCEWithLogitsLoss` takes it. A row whose first label
    is negative does not count.
    """

    fields = ("labels",)
    kept = ("logits",)

    def losses(self, outputs: Outputs, batch: Fields) -> tuple[jax.Array, jax.Array]:
        """Return losses and weights, both [N, C]."""
        logits, labels = outputs["logits"].astype(jnp.float32), batch["labels"]
        losses = jnp.maximum(logits, 0) - logits * labels + jnp.log1p(jnp.exp(-jnp.abs(logits)))
        counted = (labels[:, :1] >= 0).astype(jnp.float32)
        return losses, jnp.broadcast_to(counted, losses.shape)


@dataclass(frozen=True)
class NumberLoss:
    """(logit - label)² of `logits` [N, 1] against the numbers `labels` [N]; NaN does not count."""

    fields = ("labels",)
    kept = ("logits",)

    def losses(self, outputs: Outputs, batch: Fields) -> tuple[jax.Array, jax.Array]:
        """Return losses and weights, both [N]."""
        labels = batch["labels"]
        counted = ~jnp.isnan(labels)
        losses = squared_error(outputs["logits"], jnp.where(counted, labels, 0.0))
        return losses, counted.astype(jnp.float32)


@dataclass(frozen=True)
class SpanLoss:
    """The mean of two cross entropies: where an answer starts and where it ends, in nats.

    `start_logits` and `end_logits` [N, L] are held to `start_positions` and `end_positions` [N].
    A position that is negative does not count, nor one at L or beyond, as transformers' models
    have it. Where the batch has an `attention_mask` [N, L], padding is no place to start or end:
    transformers' loss counts it among them, and so depends on the width of the batch.
    """

    fields = ("start_positions", "end_positions")
    kept = ("start_logits", "end_logits")

    def losses(self, outputs: Outputs, batch: Fields) -> tuple[jax.Array, jax.Array]:
        """Return losses and weights, both [N, 2]; a row's two weights sum to 1."""
        parts = []
        for name in ("start", "end"):
            logits, places = outputs[f"{name}_logits"], batch[f"{name}_positions"]
            if batch.get("attention_mask") is not None:
                least = jnp.finfo(logits.dtype).min
                logits = jnp.where(batch["attention_mask"] > 0, logits, least)
            counted = (places >= 0) & (places < logits.shape[1])
            parts.append((cross_entropy(logits, jnp.where(counted, places, 0)), counted))
        losses = jnp.stack([loss for loss, _ in parts], axis=1)
        weights = jnp.stack([counted for _, counted in parts], axis=1)
        return losses, weights.astype(jnp.float32) / 2


def check_criterion(criterion: Criterion, outputs: Outputs) -> None:
    """Refuse a model without the outputs that are judged.

    Raises:
        InputRefused: it gives others.
    """
    missing = [name for name in criterion.kept if name not in outputs]
    if missing:
        raise InputRefused(
            f"the model gives {', '.join(outputs) or 'nothing'} and no {', '.join(missing)}; load "
            "it with the head of the task"
        )
