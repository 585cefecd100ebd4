"""BLEU of what a model wrote, through sacrebleu's own sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dew.artifacts import Predictions
from dew.errors import InputRefused
from dew.evaluation.written_texts import WrittenTexts


@dataclass(frozen=True)
class Bleu:
    """The BLEU of a whole pass, from 0 to 100, one right text a row.

    Args:
        texts: what was written, and the right texts.

    Raises:
        InputRefused: sacrebleu is absent.

    Source: sacrebleu 2.6 at its defaults: tokenizer 13a, exponential smoothing, case kept.
    """

    texts: WrittenTexts
    name: str = "bleu"
    reads: type = Predictions

    def __post_init__(self) -> None:
        _sacrebleu()

    def __call__(self, scored: Predictions, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the shared and written n-grams of each size, and the two lengths, int64 [10]."""
        pairs = list(self.texts.pairs(scored, batch))
        if not pairs:
            return np.zeros(10, np.int64)
        written, right = (list(side) for side in zip(*pairs, strict=True))
        found = _sacrebleu().corpus_score(written, [right])
        return np.array([*found.counts, *found.totals, found.sys_len, found.ref_len], np.int64)

    def merge(self, total: np.ndarray, part: np.ndarray) -> np.ndarray:
        """Return both batches' sums."""
        return total + part

    def finalize(self, total: np.ndarray) -> float:
        """Return the score.

        Raises:
            ValueError: the right texts of the pass are empty.
        """
        if not total[9]:
            raise ValueError("bleu: no right text of this pass has a word")
        counts, totals = total[:4].tolist(), total[4:8].tolist()
        lengths = {"sys_len": int(total[8]), "ref_len": int(total[9])}
        found = _sacrebleu().compute_bleu(counts, totals, **lengths, smooth_method="exp")
        return float(found.score)


def _sacrebleu() -> Any:
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise InputRefused('BLEU is sacrebleu\'s: pip install "dew[text]"') from None
    return BLEU()
