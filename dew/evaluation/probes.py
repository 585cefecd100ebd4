"""Probes: how well simple classifiers tell classes apart by an encoder's features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dew.artifacts import Representations
from dew.errors import InputRefused
from dew.evaluation.accuracy import counted


@dataclass(frozen=True)
class BatchAccuracies:
    """Sum of the accuracies of the batches that could be probed, and how many there were."""

    total: float
    batches: float


@dataclass(frozen=True)
class LinearProbe:
    """Accuracy of a linear classifier fitted to half of each batch, on the other half; 1 is best.

    Ridge regression onto the classes' indicators: features are centred and scaled by the first
    half's mean and deviation, the penalty times the number of fitted rows is added to the diagonal
    of their scatter, and the largest output is the class. The score is the mean of the batches'
    accuracies, so it depends on how the data is cut into batches; a batch with fewer than two
    counted rows is left out. Features that are not finite make it NaN.

    Args:
        penalty: ridge penalty a row, above 0.
        name: in the log.

    Source: Alain and Bengio 2016, arXiv:1610.01644, for the idea; the fit is a closed form.
    """

    penalty: float = 1e-2
    name: str = "batch_linear_probe_accuracy"
    reads: type = Representations

    def __post_init__(self) -> None:
        if not self.penalty > 0:
            raise InputRefused(f"{self.name}: penalty is {self.penalty}; it is above 0")

    def __call__(self, scored: Representations, batch: Mapping[str, np.ndarray]) -> BatchAccuracies:
        """Return one batch's accuracy.

        Args:
            scored: features [N, D] and labels [N]; a negative label does not count.
            batch: not read.
        """
        return _halves(scored, self._guesses)

    def merge(self, total: BatchAccuracies, part: BatchAccuracies) -> BatchAccuracies:
        """Return the accuracies of both."""
        return _both(total, part)

    def finalize(self, total: BatchAccuracies) -> float:
        """Return the mean of the batch accuracies.

        Raises:
            ValueError: no batch of the pass could be probed.
        """
        return _mean(total, self.name)

    def _guesses(self, fitted: np.ndarray, labels: np.ndarray, probed: np.ndarray) -> np.ndarray:
        mean, deviation = fitted.mean(axis=0), fitted.std(axis=0)
        scale = np.where(deviation > 0, deviation, 1.0)
        rows, others = (fitted - mean) / scale, (probed - mean) / scale
        classes, index = np.unique(labels, return_inverse=True)
        wanted = np.eye(len(classes))[index]
        offset = wanted.mean(axis=0)
        penalty = self.penalty * len(rows)
        if rows.shape[1] <= len(rows):
            scatter = rows.T @ rows + penalty * np.eye(rows.shape[1])
            weights = np.linalg.solve(scatter, rows.T @ (wanted - offset))
        else:  # the same weights by way of the smaller matrix
            gram = rows @ rows.T + penalty * np.eye(len(rows))
            weights = rows.T @ np.linalg.solve(gram, wanted - offset)
        return classes[np.argmax(others @ weights + offset, axis=1)]


@dataclass(frozen=True)
class NeighbourProbe:
    """Accuracy of a vote of nearest neighbours in half of each batch, on the other half.

    The `neighbours` rows of the first half nearest by cosine vote with weight
    exp(cosine / temperature). The score is the mean of the batches' accuracies, with the same
    limits as `LinearProbe`'s.

    Args:
        neighbours: how many vote, or all rows of the half where it holds fewer.
        temperature: of the votes, above 0.
        name: in the log.

    Source: Wu et al. 2018, arXiv:1805.01978, section 3.4; 20 and 0.07 as in Caron et al. 2021,
    arXiv:2104.14294.
    """

    neighbours: int = 20
    temperature: float = 0.07
    name: str = "batch_knn_probe_accuracy"
    reads: type = Representations

    def __post_init__(self) -> None:
        if self.neighbours < 1 or not self.temperature > 0:
            raise InputRefused(
                f"{self.name}: {self.neighbours} neighbours at temperature {self.temperature}; "
                "give 1 or more, and a temperature above 0"
            )

    def __call__(self, scored: Representations, batch: Mapping[str, np.ndarray]) -> BatchAccuracies:
        """Return one batch's accuracy; arguments as `LinearProbe`'s."""
        return _halves(scored, self._guesses)

    def merge(self, total: BatchAccuracies, part: BatchAccuracies) -> BatchAccuracies:
        """Return the accuracies of both."""
        return _both(total, part)

    def finalize(self, total: BatchAccuracies) -> float:
        """Return the mean of the batch accuracies.

        Raises:
            ValueError: no batch of the pass could be probed.
        """
        return _mean(total, self.name)

    def _guesses(self, fitted: np.ndarray, labels: np.ndarray, probed: np.ndarray) -> np.ndarray:
        cosines = _unit(probed) @ _unit(fitted).T
        count = min(self.neighbours, len(fitted))
        nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
        votes = np.exp((np.take_along_axis(cosines, nearest, axis=1) - 1) / self.temperature)
        classes, index = np.unique(labels, return_inverse=True)
        ballots = np.eye(len(classes))[index[nearest]]
        return classes[np.argmax((votes[..., None] * ballots).sum(axis=1), axis=1)]


def _halves(scored: Representations, guesses) -> BatchAccuracies:
    features, labels = counted(scored)
    half = len(labels) // 2
    if not half:
        return BatchAccuracies(0.0, 0.0)
    if not np.isfinite(features).all():
        return BatchAccuracies(math.nan, 1.0)
    guessed = guesses(features[:half], labels[:half], features[half:])
    return BatchAccuracies(float((guessed == labels[half:]).mean()), 1.0)


def _both(total: BatchAccuracies, part: BatchAccuracies) -> BatchAccuracies:
    return BatchAccuracies(total.total + part.total, total.batches + part.batches)


def _mean(total: BatchAccuracies, name: str) -> float:
    if total.batches == 0:
        raise ValueError(
            f"{name}: no batch of this pass holds two records that count. Give larger batches, and "
            "labels of 0 or more."
        )
    return total.total / total.batches


def _unit(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)
