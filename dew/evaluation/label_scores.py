"""Scores of a model that gives a record any number of labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dew.artifacts import Predictions
from dew.errors import InputRefused

KINDS = ("accuracy", "f1_micro", "f1_macro")


@dataclass(frozen=True)
class Hits:
    """Float64 counts: of each label [C] those rightly given, given and due; of records those whole.

    Args:
        both, given, due: [C].
        whole: records with exactly the right labels.
        records: all of them.
    """

    both: np.ndarray
    given: np.ndarray
    due: np.ndarray
    whole: float
    records: float


@dataclass(frozen=True)
class LabelScore:
    """A score of `logits` [N, C], a label given where its logit is above 0, against 0 or 1 [N, C].

    Args:
        kind: "accuracy" (of whole records), "f1_micro" (over all labels at once) or "f1_macro"
            (the mean of the labels').

    Raises:
        InputRefused: no such kind.

    Source: the definitions of scikit-learn's `sklearn.metrics`, a 0 / 0 as 0.
    """

    kind: str = "accuracy"
    reads: type = Predictions

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputRefused(f"score {self.kind!a:.100} is not known: {', '.join(KINDS)}")

    @property
    def name(self) -> str:
        """The kind."""
        return self.kind

    def __call__(self, scored: Predictions, batch: Mapping[str, np.ndarray]) -> Hits:
        """Return one batch's counts; rows of weight 0 do not count."""
        counted = np.asarray(scored.weights)[:, 0] > 0
        given = np.asarray(scored.outputs["logits"])[counted] > 0
        due = np.asarray(batch["labels"])[counted] > 0.5
        return Hits(
            (given & due).sum(axis=0).astype(np.float64),
            given.sum(axis=0).astype(np.float64),
            due.sum(axis=0).astype(np.float64),
            float((given == due).all(axis=1).sum()),
            float(counted.sum()),
        )

    def merge(self, total: Hits, part: Hits) -> Hits:
        """Return both batches' counts."""
        return Hits(
            total.both + part.both,
            total.given + part.given,
            total.due + part.due,
            total.whole + part.whole,
            total.records + part.records,
        )

    def finalize(self, total: Hits) -> float:
        """Return the score.

        Raises:
            ValueError: no record of the pass counts.
        """
        if not total.records:
            raise ValueError(f"{self.kind}: no record of this pass counts")
        if self.kind == "accuracy":
            return total.whole / total.records
        both, sums = total.both, total.given + total.due
        if self.kind == "f1_micro":
            both, sums = both.sum(keepdims=True), sums.sum(keepdims=True)
        each = np.divide(2 * both, sums, out=np.zeros_like(both), where=sums > 0)
        return float(each.mean())
