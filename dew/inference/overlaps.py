"""Texts of sounds that overlap, made one: what two of them have in common is written once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Times = Sequence[tuple[float, float]]
LONGER = 10_000.0
"""One over what a place more of overlap adds to the share of equal ids: long matches win."""


def merged(
    sequences: Sequence[Sequence[int]], times: Sequence[Times] = ()
) -> tuple[list[int], list[tuple[float, float]]]:
    """Return the ids of sounds each of which begins before the one before it ends.

    The two are laid over each other where the largest share of places has equal ids. The first
    half of the overlap is taken from the left one, which heard it away from its edge, and the
    other from the right one.

    Args:
        sequences: ids, at least one list.
        times: begin and end of each id in seconds, a list for each of `sequences`; equal ids then
            match only where the left one begins no later. Empty where nobody knows.

    Returns:
        The ids, and their times (empty where there are none).

    Source: transformers 5.24's Whisper tokenizer, whose choice among overlaps this is.
    """
    left, left_times = list(sequences[0]), list(times[0]) if times else []
    ids: list[int] = []
    kept: list[tuple[float, float]] = []
    for place, right in enumerate(sequences[1:], start=1):
        right_times = list(times[place]) if times else []
        end, start = _seam(left, right, left_times, right_times)
        ids += left[:end]
        kept += left_times[:end]
        left, left_times = list(right[start:]), right_times[start:]
    return ids + left, kept + left_times


def _seam(
    left: Sequence[int], right: Sequence[int], left_times: Times, right_times: Times
) -> tuple[int, int]:
    """Return where the left list ends and the right one begins."""
    lefts, rights = np.asarray(left), np.asarray(right)
    spans = [np.reshape(part, (-1, 2)) for part in (left_times, right_times)]
    best, seam = 0.0, (len(left), 0)
    for shift in range(1, len(left) + len(right)):
        here = slice(max(0, len(left) - shift), min(len(left), len(left) + len(right) - shift))
        there = slice(max(0, shift - len(left)), min(len(right), shift))
        equal = lefts[here] == rights[there]
        if left_times:
            equal &= _no_later(spans[0][here], spans[1][there])
        matches = int(np.sum(equal))
        share = matches / shift + shift / LONGER
        if matches > 1 and share > best:
            best = share
            seam = (here.start + here.stop) // 2, (there.start + there.stop) // 2
    return seam


def _no_later(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return where begin and end of the left ids [N, 2], as pairs, are at most the right ones'."""
    begins, others = left[:, 0], right[:, 0]
    return (begins < others) | ((begins == others) & (left[:, 1] <= right[:, 1]))
