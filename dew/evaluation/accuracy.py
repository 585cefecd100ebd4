"""Accuracy: the share of records whose class is among the likeliest of a classifier."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dew.artifacts import Representations
from dew.errors import InputRefused


@dataclass(frozen=True)
class Hits:
    """Records judged right and records judged, float64 both; NaN where a score was not a number."""

    right: float
    records: float


@dataclass(frozen=True)
class Accuracy:
    """Records whose label is among the `top` largest logits, over all that count; 1 is perfect.

    Every record weighs once, whichever batch it came in. A negative label does not count. Among
    equal logits the lower class goes first, as in argmax. A counted record whose logits hold NaN
    or plus infinity makes the score NaN.

    Args:
        top: how many classes a classifier may name.
        name: in the log; choose another one to measure two values of `top` in one pass.

    Raises:
        InputRefused: `top` is below 1.
    """

    top: int = 1
    name: str = "accuracy"
    reads: type = Representations

    def __post_init__(self) -> None:
        if self.top < 1:
            raise InputRefused(f"accuracy: top is {self.top}; it counts classes, from 1")

    def __call__(self, scored: Representations, batch: Mapping[str, np.ndarray]) -> Hits:
        """Return one batch's counts.

        Args:
            scored: features [N, C] are logits of C classes; labels [N] lie below C.
            batch: not read.

        Raises:
            InputRefused: features that are not [N, C], or a label that is no class.
        """
        logits, labels = counted(scored)
        classes = logits.shape[1]
        if len(labels) and labels.max() >= classes:
            raise InputRefused(
                f"accuracy: label {labels.max()} with logits of {classes} classes; labels run from "
                f"0 to {classes - 1}, and a negative one does not count"
            )
        own = logits[np.arange(len(labels)), labels][:, None]
        lower = np.arange(classes)[None] < labels[:, None]
        before = ((logits > own) | ((logits == own) & lower)).sum(axis=1)
        whole = not (np.isnan(logits) | np.isposinf(logits)).any()
        right = float((before < self.top).sum()) if whole else math.nan
        return Hits(right, float(len(labels)))

    def merge(self, total: Hits, part: Hits) -> Hits:
        """Return both batches' counts."""
        return Hits(total.right + part.right, total.records + part.records)

    def finalize(self, total: Hits) -> float:
        """Return the accuracy of a pass, in [0, 1], or NaN.

        Raises:
            ValueError: no record of the pass counts.
        """
        if total.records == 0:
            raise ValueError(
                f"{self.name}: no record of this pass counts. Look at the labels (a negative one "
                "does not count) and the weights of the validation data."
            )
        return total.right / total.records


def counted(scored: Representations) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 features [N, D] and int64 labels [N] of the records that count.

    Raises:
        InputRefused: features that are not [N, D], labels that are not integers [N].
    """
    features, labels = np.asarray(scored.features), np.asarray(scored.labels)
    whole = features.ndim == 2 and labels.shape == features.shape[:1]
    if not whole or not np.issubdtype(labels.dtype, np.integer):
        raise InputRefused(
            f"representations: features {features.shape} and {labels.dtype} labels {labels.shape}; "
            "expected features [N, D] and integer labels [N]"
        )
    kept = labels >= 0
    return features[kept].astype(np.float64), labels[kept].astype(np.int64)
