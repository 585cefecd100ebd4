"""Scores of tagged texts by whole entities: a name counts where its place and kind are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dew.artifacts import Predictions
from dew.errors import InputRefused

KINDS = ("precision", "recall", "f1", "accuracy")
Counts = np.ndarray
"""Float64 [5]: entities that are right, predicted and due; tokens that are right, and all."""


@dataclass(frozen=True)
class EntityScore:
    """One score of the likeliest tags against the right ones, over a whole pass.

    Precision, recall and F1 are over entities of all kinds at once, a 0 / 0 as 0; "accuracy" is
    of single tokens.

    Args:
        kind: one of `KINDS`.
        names: of the tags, as in `B-PER` and `O`, by their numbers.
        labels: the field of the batch with the tags [N, L]; a negative one does not count.

    Raises:
        InputRefused: no such kind.

    Source: seqeval 1.2.2 in its default mode, which reads IOB1, IOB2, IOE and IOBES alike.
    """

    kind: str
    names: tuple[str, ...]
    labels: str = "labels"
    reads: type = Predictions

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputRefused(f"score {self.kind!a:.100} is not known: {', '.join(KINDS)}")

    @property
    def name(self) -> str:
        """The kind."""
        return self.kind

    def __call__(self, scored: Predictions, batch: Mapping[str, np.ndarray]) -> Counts:
        """Return one batch's counts.

        Args:
            scored: with `logits` [N, L, C]; a row or token of weight 0 does not count.
            batch: with the tags.
        """
        truth = np.asarray(batch[self.labels])
        taken = np.asarray(scored.outputs["logits"]).argmax(axis=-1)
        if taken.shape != truth.shape:
            raise InputRefused(f"logits of {taken.shape} do not fit labels {truth.shape}")
        weights = np.asarray(scored.weights).reshape(len(truth), -1)
        counted = (truth >= 0) & (weights > 0)
        due = entities(_rows(truth, counted), self.names)
        found = entities(_rows(taken, counted), self.names)
        right = len(np.intersect1d(due, found, assume_unique=True))
        tokens = [float((truth == taken)[counted].sum()), float(counted.sum())]
        return np.array([right, len(found), len(due), *tokens], np.float64)

    def merge(self, total: Counts, part: Counts) -> Counts:
        """Return both batches' counts."""
        return total + part

    def finalize(self, total: Counts) -> float:
        """Return the score.

        Raises:
            ValueError: no token of the pass counts.
        """
        right, found, due, right_tokens, tokens = total.tolist()
        if not tokens:
            raise ValueError(
                f"{self.kind}: no token of this pass counts. Look at the labels (a negative one "
                "does not count) of the validation data."
            )
        over = {
            "precision": (right, found),
            "recall": (right, due),
            "f1": (2 * right, found + due),
            "accuracy": (right_tokens, tokens),
        }
        part, whole = over[self.kind]
        return part / whole if whole else 0.0


def entities(rows: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Return the entities of tagged rows, a number for each kind, start and end, sorted.

    Args:
        rows: the tags' numbers of each row.
        names: of the tags: a letter (B, I, E, S, O), a dash and a kind.
    """
    letters = np.array([name[:1] or "O" for name in names] + ["O"])
    named = [(name[1:].split("-", 1)[-1] or "_") for name in names] + ["_"]
    kinds = np.unique(named, return_inverse=True)[1]
    outside = len(names)
    # A row ends what it began: something outside stands behind each.
    tags = np.concatenate([part for row in rows for part in (row, [outside])] or [[outside]])
    tags = tags.astype(np.int64)
    now, kind = letters[tags], kinds[tags]
    before = np.concatenate([["O"], now[:-1]])
    kind_before = np.concatenate([[-1], kind[:-1]])
    other = kind != kind_before
    fresh = np.isin(now, ("B", "S")) | (np.isin(before, ("E", "S", "O")) & np.isin(now, ("E", "I")))
    starts = fresh | (~np.isin(now, ("O", ".")) & other)
    closed = np.isin(before, ("E", "S"))
    closed |= np.isin(before, ("B", "I")) & np.isin(now, ("B", "S", "O"))
    ends = closed | (~np.isin(before, ("O", ".")) & other)
    # Where the one that is ended here began: the last start before.
    begun = np.maximum.accumulate(np.where(starts, np.arange(len(tags)), 0))
    (stops,) = np.nonzero(ends)
    first = begun[stops - 1]
    return np.unique((kind_before[stops] * len(tags) + first) * len(tags) + stops)


def _rows(tags: np.ndarray, counted: np.ndarray) -> list[np.ndarray]:
    return [row[kept] for row, kept in zip(tags, counted, strict=True) if kept.any()]
