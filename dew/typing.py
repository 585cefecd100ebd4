"""The names that dew's signatures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Variables = Mapping[str, Any]
"""A Flax variables mapping: `{"params": ..., other collections}`."""

Batch = Mapping[str, np.ndarray]
"""One batch on the host: field name to an array whose first axis is the batch."""


@dataclass(frozen=True)
class Cutting:
    """How a text or a pair of texts is cut to a length.

    Args:
        max_tokens: the most tokens, special ones included.
        strategy: "longest_first" cuts the longer of a pair, token by token; "only_first" and
            "only_second" cut that one alone.
        stride: how many tokens a window shares with the one before it.
    """

    max_tokens: int
    strategy: str = "longest_first"
    stride: int = 0


class TextProcessor(Protocol):
    """What turns text into token ids and back; `bridges.text` reads one from a checkpoint."""

    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    vocab_size: int

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`."""
        ...

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Return the token ids of each text, no padding."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`."""
        ...

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False
    ) -> str:
        """Return the prompt text of a conversation."""
        ...
