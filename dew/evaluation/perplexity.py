"""Perplexity of tokens, exp of the mean loss of a pass, and of texts, the mean over its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dew.artifacts import TokenScores
from dew.errors import InputRefused

LEAST_LOSS = -1e-3
"""In nats. Rounding takes a loss near 0 below it by a few float32 ulps of the logits' size: 1e-4
at logits of a thousand."""


@dataclass(frozen=True)
class LossSum:
    """Weighted losses in nats and their weights, both float64 sums."""

    nats: float
    tokens: float


@dataclass(frozen=True)
class TextSum:
    """The sum of the texts' perplexities, float64, and how many texts it holds."""

    perplexities: float
    texts: int


@dataclass(frozen=True)
class Perplexity:
    """The exponential of sum(weight * loss) / sum(weight); lower is better, 1 is perfect.

    This is the perplexity over tokens (micro): every counted token weighs by its own weight,
    whichever batch or row it came in. `TextPerplexity` is the mean over texts (macro).

    Source: evaluated against transformers' mean loss on equal windows by `python -m parity`.
    """

    name: str = "perplexity"
    reads: type = TokenScores

    def __call__(self, scores: TokenScores, batch: Mapping[str, np.ndarray]) -> LossSum:
        """Return one batch's sums.

        Args:
            scores: losses in nats and weights, [N, L]; where a weight is 0 the loss may be
                anything.
            batch: not read.

        Raises:
            InputRefused: a counted loss is negative, so it is no -log of a probability.
        """
        losses, weights = counted(scores)
        check_nats(losses, self.name)
        return LossSum(nats=float((weights * losses).sum()), tokens=float(weights.sum()))

    def merge(self, total: LossSum, part: LossSum) -> LossSum:
        """Return both batches' sums."""
        return LossSum(total.nats + part.nats, total.tokens + part.tokens)

    def finalize(self, total: LossSum) -> float:
        """Return the perplexity; inf where its exponential passes float64.

        Raises:
            ValueError: the pass holds no counted target.
        """
        if total.tokens == 0:
            raise ValueError(
                "perplexity: no target of this pass counts. Look at the padding, the document "
                "boundaries and the weights of the validation data."
            )
        mean = total.nats / total.tokens
        return math.exp(mean) if mean < math.log(np.finfo(np.float64).max) else mean * math.inf


@dataclass(frozen=True)
class TextPerplexity:
    """The mean over texts of each text's own perplexity; lower is better, 1 is perfect.

    This is the perplexity over texts (macro): each row is one text, as `separate_rows` lays them
    out, and all weigh the same, long or short. Rows without a counted target leave the count.
    `Perplexity` is the one over tokens (micro).

    Source: closed form.
    """

    name: str = "text_perplexity"
    reads: type = TokenScores

    def __call__(self, scores: TokenScores, batch: Mapping[str, np.ndarray]) -> TextSum:
        """Return the sum over one batch's texts; the arguments are those of `Perplexity`.

        Raises:
            InputRefused: a counted loss is negative, so it is no -log of a probability.
        """
        losses, weights = counted(scores)
        check_nats(losses, self.name)
        tokens = weights.sum(axis=1)
        held = tokens > 0
        with np.errstate(over="ignore"):  # inf, as of Perplexity
            each = np.exp((weights * losses).sum(axis=1)[held] / tokens[held])
        return TextSum(perplexities=float(each.sum()), texts=int(held.sum()))

    def merge(self, total: TextSum, part: TextSum) -> TextSum:
        """Return both batches' sums."""
        return TextSum(total.perplexities + part.perplexities, total.texts + part.texts)

    def finalize(self, total: TextSum) -> float:
        """Return the mean; inf where a text's exponential passes float64.

        Raises:
            ValueError: the pass holds no counted target.
        """
        if total.texts == 0:
            raise ValueError(
                f"{self.name}: no row of this pass holds a target that counts. Look at the "
                "padding and the weights of the validation data."
            )
        return total.perplexities / total.texts


def counted(scores: TokenScores) -> tuple[np.ndarray, np.ndarray]:
    """Return losses, 0 where nothing counts, and weights, both float64 [N, L]."""
    weights = np.asarray(scores.weights, np.float64)
    return np.where(weights > 0, np.asarray(scores.losses, np.float64), 0.0), weights


def check_nats(losses: np.ndarray, name: str) -> None:
    """Refuse counted losses [N, L] that cannot be -log of a probability.

    Raises:
        InputRefused: one is below 0 by more than rounding.
    """
    wrong = np.argwhere(losses < LEAST_LOSS)
    if len(wrong):
        row, place = wrong[0]
        raise InputRefused(
            f"{name}: {len(wrong)} counted losses are negative, the first {losses[row, place]:.6g} "
            f"at row {row}, target {place}; expected nats, -log p >= 0. Probabilities, log "
            "probabilities and losses that are no cross entropy have no perplexity: use "
            "dew.evaluation.mean_loss.MeanLoss for those."
        )
