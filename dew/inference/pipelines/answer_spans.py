"""Answer spans: the likeliest stretches of tokens between a start and an end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FAR_BELOW = -10000.0


class Spans(NamedTuple):
    """The likeliest spans of a window, and how likely it is that it holds no answer.

    Args:
        starts, ends: int [K], first and last token of each.
        scores: float32 [K], highest first.
        nothing: the first token's product of start and end.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    scores: NDArray[np.float32]
    nothing: float


def likeliest_spans(
    start_logits: NDArray[np.float32],
    end_logits: NDArray[np.float32],
    allowed: NDArray[np.bool_],
    *,
    count: int,
    longest: int,
) -> Spans:
    """Return the spans whose start's and end's shares have the highest product.

    Args:
        start_logits, end_logits: [L].
        allowed: [L], the tokens that an answer may start or end with; shares are of these.
        count: the most spans, K.
        longest: the most tokens of a span.
    """
    start, end = _shares(start_logits, allowed), _shares(end_logits, allowed)
    nothing = float(start[0] * end[0])
    start[0] = end[0] = 0.0
    products = np.tril(np.triu(start[:, None] * end[None]), longest - 1)
    inner = allowed.copy()
    inner[0] = False
    products[~(inner[:, None] & inner[None])] = -1.0
    flat = products.ravel()
    taken = np.arange(flat.size)
    if count < flat.size:
        taken = np.argpartition(-flat, count - 1)[:count]
    taken = taken[np.argsort(-flat[taken], kind="stable")]
    starts, ends = np.unravel_index(taken, products.shape)
    real = (flat[taken] >= 0) & (ends >= starts) & (ends - starts < longest)
    return Spans(starts[real], ends[real], flat[taken][real], nothing)


def _shares(logits: NDArray[np.float32], allowed: NDArray[np.bool_]) -> NDArray[np.float32]:
    masked = np.where(allowed, np.asarray(logits, np.float32), np.float32(FAR_BELOW))
    shares = np.exp(masked - masked.max())
    return shares / shares.sum()
