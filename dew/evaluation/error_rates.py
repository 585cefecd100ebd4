"""Word and character error rates of what a model wrote down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dew.artifacts import Predictions
from dew.errors import InputRefused
from dew.evaluation.written_texts import WrittenTexts

KINDS = ("wer", "cer")


@dataclass(frozen=True)
class ErrorRate:
    """Edits that make what was written the right text, over the length of the right texts.

    Args:
        kind: "wer" counts words, "cer" characters. White space at the ends of a text does not
            count, and between words any of it is one space.
        texts: what was written, and the right texts.

    Raises:
        InputRefused: no such kind.

    Source: jiwer 4.0 with its default transformations.
    """

    kind: str
    texts: WrittenTexts
    reads: type = Predictions

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputRefused(f"score {self.kind!a:.100} is not known: {', '.join(KINDS)}")

    @property
    def name(self) -> str:
        """The kind."""
        return self.kind

    def __call__(self, scored: Predictions, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the edits and the length of the right texts, float64 [2]."""
        total = np.zeros(2)
        for written, right in self.texts.pairs(scored, batch):
            due, found = (self._parts(text) for text in (right, written))
            total += edits(due, found), len(due)
        return total

    def merge(self, total: np.ndarray, part: np.ndarray) -> np.ndarray:
        """Return both batches' sums."""
        return total + part

    def finalize(self, total: np.ndarray) -> float:
        """Return the rate.

        Raises:
            ValueError: the right texts of the pass are empty.
        """
        if not total[1]:
            raise ValueError(f"{self.kind}: no right text of this pass has a word")
        return float(total[0] / total[1])

    def _parts(self, text: str) -> Sequence[str]:
        return text.split() if self.kind == "wer" else text.strip()


def edits(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many insertions, deletions and replacements make `first` of `second`.

    Source: Levenshtein 1966, a row of the table at a time.
    """
    numbers = {part: number for number, part in enumerate({*first, *second})}
    across = np.array([numbers[part] for part in second], np.int64)
    row, steps = np.arange(len(second) + 1), np.arange(len(second) + 1)
    for place, part in enumerate(first, 1):
        changed = np.minimum(row[:-1] + (across != numbers[part]), row[1:] + 1)
        best = np.concatenate([[place], changed])
        # An insertion follows on the best so far, one more for each step.
        row = np.minimum.accumulate(best - steps) + steps
    return int(row[-1])
