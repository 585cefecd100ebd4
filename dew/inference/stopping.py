"""Stop strings: where in a row of new ids a text is first complete."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dew.typing import TextProcessor

MARGIN_TOKENS = 8


class StopStrings:
    """Follows the rows of one `generate` call and ends those whose text holds a stop string.

    A row ends with the token that completes the string, as in transformers; a string that begins
    in the prompt counts if a new token completes it. Text is read with special tokens in it.
    """

    def __init__(
        self,
        processor: TextProcessor,
        strings: Sequence[str],
        prompts: Sequence[Sequence[int]],
        *,
        ends: Sequence[int],
        pad: int,
    ):
        self._processor = processor
        self._strings = tuple(strings)
        # A token may be as short as one byte, so this many ids surely hold the longest string.
        self._window = max(len(text.encode()) for text in strings) + MARGIN_TOKENS
        self._tails = [list(row[-self._window :]) for row in prompts]
        self._ends = list(ends)
        self._pad = pad
        self.ended = np.zeros(len(prompts), bool)

    def cut(self, ids: np.ndarray) -> np.ndarray:
        """Return the newest ids, with padding after each row's end.

        Args:
            ids: int32 [N, C]; an end id or a stop string ends its row, and `ended` notes it.

        Returns:
            int32 [N, C'], narrower than C only where every row has ended.
        """
        ids = ids.copy()
        lengths = [self._advance(row, ids[row].tolist()) for row in range(len(ids))]
        for row, length in enumerate(lengths):
            ids[row, length:] = self._pad
        return ids[:, : max(lengths)] if self.ended.all() else ids

    def _advance(self, row: int, new: list[int]) -> int:
        """Return how many of a row's new ids belong to it."""
        if self.ended[row]:
            return 0
        ending = next((at + 1 for at, token in enumerate(new) if token in self._ends), None)
        length = self._completed(self._tails[row], new[:ending])
        length = ending if length is None else length
        self.ended[row] = length is not None
        self._tails[row] = (self._tails[row] + new)[-self._window :]
        return len(new) if length is None else length

    def _completed(self, tail: list[int], new: list[int]) -> int | None:
        """Return after how many new ids the text holds a stop string that ends in them."""
        if not any(text in self._text(tail + new) for text in self._strings):
            return None
        before = self._text(tail)
        for length in range(1, len(new) + 1):
            text = self._text(tail + new[:length])
            # What the prompt alone already held does not count: the match must end in new text.
            known = _shared(before, text)
            for stop in self._strings:
                if text.find(stop, max(known - len(stop) + 1, 0)) >= 0:
                    return length
        return None

    def _text(self, ids: list[int]) -> str:
        return self._processor.decode(ids, skip_special_tokens=False)


def _shared(before: str, text: str) -> int:
    """Return how many leading characters the two texts share; a half character differs."""
    pairs = zip(before, text, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(before), len(text)))
