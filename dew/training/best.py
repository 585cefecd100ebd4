"""Which evaluation of a run is its best, and when to stop waiting for a better one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dew.errors import InputRefused


@dataclass(frozen=True)
class Best:
    """What makes one evaluation better than another.

    Args:
        score: its name among an evaluation's scores, such as `val/accuracy`.
        greater: whether more is better.
        patience: evaluations in a row that may pass without a better one, before the run stops;
            None never stops it.
        threshold: by how much a score must be better to count, at least 0.

    Raises:
        InputRefused: a patience below 1 or a threshold below 0.

    Source: `EarlyStoppingCallback` of transformers 5.24.
    """

    score: str
    greater: bool
    patience: int | None = None
    threshold: float = 0.0

    def __post_init__(self) -> None:
        if (self.patience is not None and self.patience < 1) or self.threshold < 0:
            raise InputRefused(
                f"early stopping: patience {self.patience}, threshold {self.threshold}; expected "
                "a patience of at least 1 and a threshold of at least 0"
            )

    def rank(self, scores: Mapping[str, float]) -> float | None:
        """Return a number that is lower for better scores, or None where the score is not there.

        Raises:
            InputRefused: an evaluation without the score.
        """
        if not scores:
            return None
        if self.score not in scores:
            raise InputRefused(
                f"the best model is to be found by {self.score}, which this run does not measure; "
                f"it measures {', '.join(scores)}"
            )
        value = scores[self.score]
        return -value if self.greater else value

    def exhausted(self, ranks: Sequence[float]) -> bool:
        """Tell whether the last `patience` of the evaluations brought nothing better.

        Args:
            ranks: of all evaluations so far, in order.
        """
        if self.patience is None:
            return False
        best, waited = None, 0
        for rank in ranks:
            if best is None or (rank < best and best - rank > self.threshold):
                best, waited = rank, 0
            else:
                waited += 1
        return waited >= self.patience
