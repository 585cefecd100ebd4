"""Scores of a classifier that follow from how often each class was taken for each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dew.artifacts import Predictions
from dew.errors import InputRefused

Counts = np.ndarray
"""Float64 [C, C]: records by their class (row) and by the class that was predicted (column)."""


@dataclass(frozen=True)
class ClassScore:
    """One score of the likeliest class against the label, over a whole pass.

    Args:
        kind: one of `KINDS`. "f1", "precision" and "recall" are those of class 1 among two; the
            "_macro" ones are means over the classes, "_weighted" ones weighed by their records.
        name: in the log; the kind where empty.
        labels: the field of the batch that holds the classes, [...]; a negative one does not
            count.

    Raises:
        InputRefused: no such kind.

    Source: the definitions of scikit-learn's `sklearn.metrics`, a 0 / 0 as 0.
    """

    kind: str = "accuracy"
    name: str = ""
    labels: str = "labels"
    reads: type = Predictions

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputRefused(f"score {self.kind!a:.100} is not known: {', '.join(KINDS)}")
        if not self.name:
            object.__setattr__(self, "name", self.kind)

    def __call__(self, scored: Predictions, batch: Mapping[str, np.ndarray]) -> Counts:
        """Return one batch's counts.

        Args:
            scored: with `logits` [..., C].
            batch: with the labels.
        """
        return confusion(scored, batch, self.labels)

    def merge(self, total: Counts, part: Counts) -> Counts:
        """Return both batches' counts."""
        return total + part

    def finalize(self, total: Counts) -> float:
        """Return the score.

        Raises:
            ValueError: no record of the pass counts.
        """
        if not total.sum():
            raise ValueError(
                f"{self.name}: no record of this pass counts. Look at the labels (a negative one "
                "does not count) of the validation data."
            )
        return float(KINDS[self.kind](total))


def confusion(scored: Predictions, batch: Mapping[str, np.ndarray], labels: str) -> Counts:
    """Return how often each class was taken for each other, float64 [C, C].

    Args:
        scored: with `logits` [..., C]; a place of weight 0 does not count.
        batch: with integers [...] under `labels`; a negative one does not count.
        labels: the field's name.

    Raises:
        InputRefused: shapes that do not fit, or a label that is no class.
    """
    logits = np.asarray(scored.outputs["logits"])
    truth = np.asarray(batch[labels])
    if logits.shape[:-1] != truth.shape:
        raise InputRefused(f"logits {logits.shape} do not fit labels {truth.shape}")
    classes = logits.shape[-1]
    counted = (truth >= 0) & (np.asarray(scored.weights) > 0)
    right, taken = truth[counted], logits[counted].argmax(axis=-1)
    if right.size and right.max() >= classes:
        raise InputRefused(
            f"label {right.max()} with logits of {classes} classes; expected 0 to {classes - 1}"
        )
    found = np.bincount(right.astype(np.int64) * classes + taken, minlength=classes * classes)
    return found.reshape(classes, classes).astype(np.float64)


def _over(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _precisions(counts: Counts) -> np.ndarray:
    return _over(np.diag(counts).copy(), counts.sum(axis=0))


def _recalls(counts: Counts) -> np.ndarray:
    return _over(np.diag(counts).copy(), counts.sum(axis=1))


def _f1s(counts: Counts) -> np.ndarray:
    return _over(2 * np.diag(counts), counts.sum(axis=0) + counts.sum(axis=1))


def _macro(each: Callable[[Counts], np.ndarray]) -> Callable[[Counts], float]:
    def mean(counts: Counts) -> float:
        # A class that neither a label nor a prediction names has no score.
        present = counts.sum(axis=0) + counts.sum(axis=1) > 0
        return float(each(counts)[present].mean())

    return mean


def _weighted(each: Callable[[Counts], np.ndarray]) -> Callable[[Counts], float]:
    def mean(counts: Counts) -> float:
        return float(np.average(each(counts), weights=counts.sum(axis=1)))

    return mean


def _positive(each: Callable[[Counts], np.ndarray]) -> Callable[[Counts], float]:
    def of_one(counts: Counts) -> float:
        if len(counts) != 2:
            raise InputRefused(
                f"a score of class 1 alone needs two classes, found {len(counts)}; take _macro"
            )
        return float(each(counts)[1])

    return of_one


def _matthews(counts: Counts) -> float:
    total, right = counts.sum(), np.trace(counts)
    truth, taken = counts.sum(axis=1), counts.sum(axis=0)
    product = (total**2 - taken @ taken) * (total**2 - truth @ truth)
    return float((right * total - truth @ taken) / np.sqrt(product)) if product else 0.0


KINDS: dict[str, Callable[[Counts], float]] = {
    "accuracy": lambda counts: float(np.trace(counts) / counts.sum()),
    "precision": _positive(_precisions),
    "recall": _positive(_recalls),
    "f1": _positive(_f1s),
    "precision_macro": _macro(_precisions),
    "recall_macro": _macro(_recalls),
    "f1_macro": _macro(_f1s),
    "f1_weighted": _weighted(_f1s),
    "matthews_correlation": _matthews,
}
"""Name to score of the counts."""
