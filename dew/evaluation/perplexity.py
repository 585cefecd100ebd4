"""Perplexity: exp of the mean loss over every counted token of a pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dew.artifacts import TokenScores


@dataclass(frozen=True)
class LossSum:
    """Weighted losses in nats and their weights, both float64 sums."""

    nats: float
    tokens: float


@dataclass(frozen=True)
class Perplexity:
    """The exponential of sum(weight * loss) / sum(weight); lower is better, 1 is perfect.

    Every counted token weighs by its own weight, whichever batch or row it came in.

    Source: evaluated against transformers' mean loss on equal windows by `python -m parity`.
    """

    name: str = "perplexity"
    reads: type = TokenScores

    def __call__(self, scores: TokenScores, batch: Mapping[str, np.ndarray]) -> LossSum:
        """Return one batch's sums.

        Args:
            scores: losses and weights, [N, L]; where a weight is 0 the loss may be anything.
            batch: not read.
        """
        weights = np.asarray(scores.weights, np.float64)
        losses = np.where(weights > 0, np.asarray(scores.losses, np.float64), 0.0)
        return LossSum(nats=float((weights * losses).sum()), tokens=float(weights.sum()))

    def merge(self, total: LossSum, part: LossSum) -> LossSum:
        """Return both batches' sums."""
        return LossSum(total.nats + part.nats, total.tokens + part.tokens)

    def finalize(self, total: LossSum) -> float:
        """Return the perplexity; inf where its exponential passes float64.

        Raises:
            ValueError: the pass holds no counted target.
        """
        if total.tokens == 0:
            raise ValueError(
                "perplexity: no target of this pass counts. Look at the padding, the document "
                "boundaries and the weights of the validation data."
            )
        mean = total.nats / total.tokens
        return math.exp(mean) if mean < math.log(np.finfo(np.float64).max) else mean * math.inf
