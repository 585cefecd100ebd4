"""Text as it becomes complete, from ids that come a few at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dew.typing import TextProcessor

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Hands the new text of one row to a callback, in whole characters.

    It has the two methods of transformers' streamers; the prompt is not repeated.
    """

    def __init__(self, processor: TextProcessor, on_text: Callable[[str], object]):
        self._processor = processor
        self._on_text = on_text
        self._prompted = False
        # Ids since the last piece but one: decoders look at what stands before a token.
        self._ids: list[int] = []
        self._told = 0

    def put(self, value: np.ndarray) -> None:
        """Take the prompt [1, P] first, then each new id [1]."""
        if not self._prompted:
            self._prompted = True
            return
        self._ids.extend(int(token) for token in value)
        before, text = self._texts()
        if len(text) > len(before) and not text.endswith(UNFINISHED):
            self._on_text(text[len(before) :])
            self._ids, self._told = self._ids[self._told :], len(self._ids) - self._told

    def end(self) -> None:
        """Hand over what is left, be it half a character."""
        before, text = self._texts()
        if len(text) > len(before):
            self._on_text(text[len(before) :])
        self._ids, self._told = [], 0

    def _texts(self) -> tuple[str, str]:
        return self._processor.decode(self._ids[: self._told]), self._processor.decode(self._ids)
