"""Where rows of new ids end: at an end id, or with the token that completes a stop string."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dew.typing import TextProcessor

MARGIN_TOKENS = 8


class Endings:
    """Follows the rows of one `generate` call.

    Attributes:
        ended: bool [N].
        lengths: int [N], each row's own ids so far, its end included.
        stops: the stop strings, or None.
    """

    def __init__(self, rows: int, ends: Sequence[int], pad: int, stops: StopStrings | None):
        self._ends = np.asarray(ends, np.int32)
        self._pad = pad
        self.stops = stops
        self.ended = np.zeros(rows, bool)
        self.lengths = np.zeros(rows, int)

    def cut(self, ids: np.ndarray) -> np.ndarray:
        """Return the newest ids [N, C] with padding after each row's end.

        They are narrower than C only where every row has ended before the last column.
        """
        ids = ids.copy()
        before = self.lengths.copy()
        for row in np.flatnonzero(~self.ended):
            own = self._own(int(row), ids[row])
            ids[row, own:] = self._pad
            self.lengths[row] += own
        return ids[:, : (self.lengths - before).max()] if self.ended.all() else ids

    def _own(self, row: int, new: np.ndarray) -> int:
        """Return how many of a row's new ids belong to it."""
        hits = np.flatnonzero(np.isin(new, self._ends))
        own = int(hits[0]) + 1 if hits.size else None
        if self.stops is not None:
            stopped = self.stops.completed(row, new[:own].tolist())
            own = own if stopped is None else stopped
        self.ended[row] = own is not None
        return len(new) if own is None else own


class StopStrings:
    """Texts that end a row with the token that completes one, as in transformers.

    A string that begins in the prompt counts if a new token completes it. Text is read with its
    special tokens in it.
    """

    def __init__(
        self, processor: TextProcessor, strings: Sequence[str], prompts: Sequence[Sequence[int]]
    ):
        self._processor = processor
        self._strings = tuple(strings)
        # A token may be as short as one byte, so this many ids surely hold the longest string.
        self._window = max(len(text.encode()) for text in strings) + MARGIN_TOKENS
        self._tails = [list(row[-self._window :]) for row in prompts]

    def completed(self, row: int, new: list[int]) -> int | None:
        """Return after how many of a row's `new` ids a string is complete, or None; note them."""
        tail = self._tails[row]
        self._tails[row] = (tail + new)[-self._window :]
        whole = self._text(tail + new)
        if not any(text in whole for text in self._strings):
            return None
        before = self._text(tail)
        return next(
            (
                length
                for length in range(1, len(new) + 1)
                if self._ends_anew(before, self._text(tail + new[:length]))
            ),
            None,
        )

    def _ends_anew(self, before: str, text: str) -> bool:
        """Return whether a string ends in what `text` adds to `before`."""
        # A half character at the end of `before` turns into another one: it is not shared.
        pairs = zip(before, text, strict=False)
        shared = next(
            (at for at, (a, b) in enumerate(pairs) if a != b), min(len(before), len(text))
        )
        return any(text.find(stop, max(shared - len(stop) + 1, 0)) >= 0 for stop in self._strings)

    def _text(self, ids: list[int]) -> str:
        return self._processor.decode(ids, skip_special_tokens=False)
