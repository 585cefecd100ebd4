"""Rows from documents: several packed into a row, or one document a row."""

from __future__ import annotations

import numpy as np

from dew.data.documents import Documents
from dew.data.rows import TokenRows
from dew.errors import InputRefused


def packed_rows(documents: Documents, *, seq_len: int) -> TokenRows:
    """Pack documents into rows of L+1 tokens: the longest first, each where it fits tightest.

    A document longer than a row is cut into pieces that share one token, so that each of its
    tokens but the first is a target exactly once. A document of one token or none has no target
    and is left out. The result depends on nothing but the documents.

    Args:
        documents: what to pack.
        seq_len: L, the predicted positions of a row, at least 1.

    Returns:
        Rows whose segments number the pieces of a row from 1, with 0 at padding.

    Raises:
        InputRefused: `seq_len` below 1.

    Source: best-fit decreasing; Johnson et al. 1974, doi:10.1137/0203025.
    """
    _check(seq_len)
    starts, lengths = _pieces(documents, seq_len)
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    places, rows = _best_fit(lengths.tolist(), seq_len + 1)
    return _filled(documents, starts, lengths, places=places, shape=(rows, seq_len + 1))


def separate_rows(documents: Documents, *, seq_len: int) -> TokenRows:
    """Put each document in a row of its own; a longer one keeps its first L+1 tokens.

    A document of one token or none has no target and is left out.

    Args:
        documents: what to lay out, kept in order.
        seq_len: L, the predicted positions of a row, at least 1.

    Returns:
        Rows with segment 1 at the document and 0 at padding.

    Raises:
        InputRefused: `seq_len` below 1.
    """
    _check(seq_len)
    kept = np.flatnonzero(documents.lengths > 1)
    starts = documents.offsets[kept]
    lengths = np.minimum(documents.lengths[kept], seq_len + 1)
    places = [(row, 0, 1) for row in range(len(kept))]
    return _filled(documents, starts, lengths, places=places, shape=(len(kept), seq_len + 1))


def _pieces(documents: Documents, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where each piece starts in the flat tokens, and its length, both int64 [P]."""
    targets = np.maximum(documents.lengths - 1, 0)
    counts = -(-targets // seq_len)
    first = np.cumsum(counts) - counts
    number = np.arange(counts.sum()) - np.repeat(first, counts)  # within its document
    starts = np.repeat(documents.offsets[:-1], counts) + number * seq_len
    left = np.repeat(targets, counts) - number * seq_len
    return starts, np.minimum(left, seq_len) + 1


def _best_fit(lengths: list[int], room: int) -> tuple[list[tuple[int, int, int]], int]:
    """Place pieces, longest first; return (row, column, segment) of each, and the row count.

    `free[space]` holds the rows with that much space; bit `space` of `open_spaces` is set where
    there are any. The lowest set bit at or above a length is the tightest row, at a cost that
    does not grow with the number of rows.
    """
    free: list[list[int]] = [[] for _ in range(room + 1)]
    segments: list[int] = []
    places: list[tuple[int, int, int]] = []
    open_spaces = 0
    for length in lengths:
        fitting = open_spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = free[space].pop()
            if not free[space]:
                open_spaces ^= 1 << space
        else:
            space, row = room, len(segments)
            segments.append(0)
        segments[row] += 1
        places.append((row, room - space, segments[row]))
        left = space - length
        if left > 1:  # one token alone would have no target
            free[left].append(row)
            open_spaces |= 1 << left
    return places, len(segments)


def _filled(
    documents: Documents,
    starts: np.ndarray,
    lengths: np.ndarray,
    *,
    places: list[tuple[int, int, int]],
    shape: tuple[int, int],
) -> TokenRows:
    tokens, segments = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    weights = None if documents.weights is None else np.zeros(shape, np.float32)
    for start, length, (row, column, segment) in zip(
        starts.tolist(), lengths.tolist(), places, strict=True
    ):
        span = slice(column, column + length)
        tokens[row, span] = documents.tokens[start : start + length]
        segments[row, span] = segment
        if weights is not None and documents.weights is not None:
            weights[row, span] = documents.weights[start : start + length]
    return TokenRows(tokens, segments, weights)


def _check(seq_len: int) -> None:
    if seq_len < 1:
        raise InputRefused(f"seq_len: found {seq_len}, expected at least 1.")
