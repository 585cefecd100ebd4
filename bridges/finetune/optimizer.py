"""AdamW as torch computes it, with Hugging Face's schedules, clipping and exemptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import optax

from dew.training.optimizers import decayed, optimizer
from dew.training.schedules import learning_rate


@dataclass(frozen=True)
class AdamW:
    """The numbers of an optimizer, by Hugging Face's names.

    Args:
        learning_rate: the highest rate.
        schedule: "linear", "cosine", "constant" or "constant_with_warmup".
        warmup_steps: updates of rising rate; below 1 a share of `total`.
        total: updates of the whole run.
        weight_decay: decoupled decay, times the rate; none on biases and norms.
        beta1, beta2: decay of the first and second moment.
        epsilon: added to the root of the second moment.
        max_grad_norm: global norm that gradients are scaled down to; 0 leaves them.
    """

    learning_rate: float
    schedule: str
    warmup_steps: float
    total: int
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    max_grad_norm: float = 1.0

    def transform(self, decays: Callable[[Any], Any] = decayed) -> optax.GradientTransformation:
        """Return the optax chain: clip, moments, decay, rate.

        Args:
            decays: which leaves of the parameters decay, a tree of booleans.
        """
        return optimizer(
            "adamw",
            self.rate(),
            weight_decay=self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            max_grad_norm=self.max_grad_norm,
            decays=decays,
        )

    def rate(self) -> Callable[[Any], Any]:
        """Return the learning rate of update n, counted from 0."""
        return learning_rate(self.learning_rate, self.schedule, self.warmup_steps, self.total)
