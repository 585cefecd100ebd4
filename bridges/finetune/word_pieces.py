"""Texts that come as lists of words, cut into a tokenizer's pieces, and the word of each piece."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tokenizers

from dew.errors import InputRefused, shown

CHUNK_ROWS = 1024


def word_tokenizer(tokenizer: Any, longest: int) -> tokenizers.Tokenizer:
    """Return a tokenizer of lists of words, which cuts them to a length.

    Byte-level tokenizers mark a word's start by the space before it, so each word is given one,
    as transformers' `add_prefix_space` does.

    Args:
        tokenizer: a checkpoint's `TextProcessor`.
        longest: the most tokens, special ones included.

    Raises:
        InputRefused: a length without room for a word.
    """
    definition = json.loads(tokenizer.tokenizer.to_str())
    first = definition.get("pre_tokenizer") or {}
    for part in (first, *first.get("pretokenizers", ())):
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = True
    made = tokenizers.Tokenizer.from_str(json.dumps(definition))
    made.no_padding()
    try:
        made.enable_truncation(longest)
    except BaseException as error:
        raise InputRefused(
            f"max_length: {longest} tokens leave no room for a word: {shown(str(error))}"
        ) from None
    return made


def word_pieces(
    tokenizer: Any, rows: Sequence[Sequence[str]], longest: int
) -> list[tokenizers.Encoding]:
    """Return each row's encoding, special tokens included; `word_ids` says whose piece each is.

    Args:
        tokenizer: a checkpoint's `TextProcessor`.
        rows: the words of each row.
        longest: the most tokens of a row.

    Raises:
        InputRefused: a word that the tokenizer cannot take.
    """
    made = word_tokenizer(tokenizer, longest)
    found: list[tokenizers.Encoding] = []
    for start in range(0, len(rows), CHUNK_ROWS):
        part = [list(row) for row in rows[start : start + CHUNK_ROWS]]
        try:
            found += made.encode_batch(part, is_pretokenized=True)
        # The library panics with a BaseException of its own.
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            said = shown(str(error))
            raise InputRefused(f"data: words that the tokenizer fails on: {said}") from None
    return found
