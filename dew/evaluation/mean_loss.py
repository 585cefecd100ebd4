"""The mean loss of a pass: mean squared error of a regressor, mean nats of a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dew.artifacts import TokenScores
from dew.evaluation.perplexity import LossSum, counted


@dataclass(frozen=True)
class MeanLoss:
    """sum(weight * loss) / sum(weight) over a whole pass, in the unit of the losses.

    Args:
        name: in the log, such as "mse" for a regressor.
    """

    name: str = "loss"
    reads: type = TokenScores

    def __call__(self, scores: TokenScores, batch: Mapping[str, np.ndarray]) -> LossSum:
        """Return one batch's sums; losses may be negative, and anything where a weight is 0."""
        losses, weights = counted(scores)
        return LossSum(nats=float((weights * losses).sum()), tokens=float(weights.sum()))

    def merge(self, total: LossSum, part: LossSum) -> LossSum:
        """Return both batches' sums."""
        return LossSum(total.nats + part.nats, total.tokens + part.tokens)

    def finalize(self, total: LossSum) -> float:
        """Return the mean.

        Raises:
            ValueError: nothing of the pass counts.
        """
        if total.tokens == 0:
            raise ValueError(
                f"{self.name}: nothing of this pass counts. Look at the weights of the validation "
                "data."
            )
        return total.nats / total.tokens
