"""How numbers that a model gives go with the right ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dew.artifacts import Predictions
from dew.errors import InputRefused

KINDS = ("pearson", "spearman")
Pairs = np.ndarray
"""Float64 [2, N]: predictions and labels."""


@dataclass(frozen=True)
class Correlation:
    """Pearson's or Spearman's correlation of `logits` [N, 1] with the numbers `labels` [N].

    Args:
        kind: "pearson", or "spearman": that of the ranks, equal values at their mean rank.
        output: which of the outputs holds the predictions.

    Raises:
        InputRefused: no such kind.
    """

    kind: str = "pearson"
    output: str = "logits"
    reads: type = Predictions

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputRefused(f"correlation {self.kind!a:.100} is not known: {', '.join(KINDS)}")

    @property
    def name(self) -> str:
        """The kind."""
        return self.kind

    def __call__(self, scored: Predictions, batch: Mapping[str, np.ndarray]) -> Pairs:
        """Return one batch's pairs; a label that is NaN does not count."""
        labels = np.asarray(batch["labels"], np.float64)
        found = np.asarray(scored.outputs[self.output], np.float64).reshape(len(labels))
        weights = np.asarray(scored.weights).reshape(len(labels))
        counted = ~np.isnan(labels) & (weights > 0)
        return np.stack([found[counted], labels[counted]])

    def merge(self, total: Pairs, part: Pairs) -> Pairs:
        """Return both batches' pairs."""
        return np.concatenate([total, part], axis=1)

    def finalize(self, total: Pairs) -> float:
        """Return the correlation; NaN where either side never changes.

        Raises:
            ValueError: fewer than two records of the pass count.
        """
        if total.shape[1] < 2:
            raise ValueError(f"{self.kind}: needs two records that count, found {total.shape[1]}")
        first, second = (ranks(side) for side in total) if self.kind == "spearman" else total
        first, second = first - first.mean(), second - second.mean()
        scale = np.sqrt((first @ first) * (second @ second))
        return float(first @ second / scale) if scale else float("nan")


def ranks(values: np.ndarray) -> np.ndarray:
    """Return each value's rank from 1, float64 [N]; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]
