"""Documents' token ids from their texts, a chunk at a time."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from dew.data import Documents
from dew.errors import InputRefused, shown
from dew.typing import TextProcessor

CHUNK_DOCUMENTS = 1024
CHUNK_CHARACTERS = 1 << 20
PIECE_CHARACTERS = 1 << 18
CONTEXT = 256
BEFORE_LINE_END = re.compile(r"(?<=\w)(?=\n)")
SHOWN_AFTER_SECONDS = 2.0


def tokenized(
    texts: Iterable[str],
    processor: TextProcessor,
    *,
    add_eos: bool = True,
    vocab_size: int | None = None,
) -> Documents:
    """Return the token ids of each text, with an end token after it.

    Each text gets the special tokens that its tokenizer adds by itself, and then the first of its
    end tokens unless it has one there already. A very long text is tokenized in pieces that give
    the same ids. While it takes more than two seconds, a terminal shows how far it is.

    Args:
        texts: one a document.
        processor: the tokenizer.
        add_eos: whether to end each document with an end token, which is then a target.
        vocab_size: ids from here on are refused; None takes the tokenizer's own number.

    Raises:
        InputRefused: no end token where one is asked for, or an id past the vocabulary.
    """
    if add_eos and not processor.eos_token_ids:
        raise InputRefused(
            "tokenizer: it names no end token, so a document's end cannot be taught. Name one in "
            "tokenizer_config.json (eos_token), or go without: add_eos=False."
        )
    end = processor.eos_token_ids[0] if add_eos else None
    parts: list[np.ndarray] = []
    lengths: list[int] = []
    with _Progress() as progress:
        for chunk in _chunks(texts):
            ids = _encoded(chunk, processor)
            for document in ids:
                if end is not None and (
                    not document or document[-1] not in processor.eos_token_ids
                ):
                    document.append(end)
            sizes = [len(document) for document in ids]
            parts.append(np.fromiter(chain.from_iterable(ids), np.int64, sum(sizes)))
            lengths += sizes
            _check_ids(parts[-1], sizes, vocab_size or processor.vocab_size, len(lengths))
            parts[-1] = parts[-1].astype(np.int32)
            progress.advance(len(ids), sum(sizes))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Documents(np.concatenate(parts) if parts else np.zeros(0, np.int32), offsets)


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Give the texts in lists of bounded number and length."""
    chunk: list[str] = []
    characters = 0
    for text in texts:
        chunk.append(text)
        characters += len(text)
        if len(chunk) == CHUNK_DOCUMENTS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _encoded(texts: list[str], processor: TextProcessor) -> list[list[int]]:
    """Return the ids of each text, with the tokenizer's own special tokens."""
    if len(texts[-1]) <= 2 * PIECE_CHARACTERS:  # a chunk ends at its first very long text
        return processor.encode_batch(texts)
    around = _special_tokens(processor)
    pieces = [] if around is None else _pieces(texts[-1], processor)
    if around is None or len(pieces) == 1:
        return processor.encode_batch(texts)
    before, after = around
    long: list[int] = list(before)
    step = max(1, CHUNK_CHARACTERS // PIECE_CHARACTERS)
    for start in range(0, len(pieces), step):
        some = processor.encode_batch(pieces[start : start + step], add_special_tokens=False)
        long.extend(chain.from_iterable(some))
    if before[:1] == [processor.bos_token_id] and long[1:2] == before[:1]:
        del long[0]  # the text brought its own start token
    rest = processor.encode_batch(texts[:-1]) if len(texts) > 1 else []
    return [*rest, long + after]


def _pieces(text: str, processor: TextProcessor) -> list[str]:
    """Cut a text at line ends where the ids on both sides do not depend on each other.

    Each cut is tried out: the text around it must give the same ids in one part and in two. A
    tokenizer that looks across line ends fails that, and the text stays whole.
    """
    cuts, place = [0], PIECE_CHARACTERS
    while place < len(text) - PIECE_CHARACTERS:
        found = BEFORE_LINE_END.search(text, place, place + PIECE_CHARACTERS)
        if found is None:
            return [text]
        place = found.start()
        left, right = text[place - CONTEXT : place], text[place : place + CONTEXT]
        whole, first, second = processor.encode_batch(
            [left + right, left, right], add_special_tokens=False
        )
        if whole != first + second:
            return [text]
        cuts.append(place)
        place += PIECE_CHARACTERS
    return [text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def _special_tokens(processor: TextProcessor) -> tuple[list[int], list[int]] | None:
    """Return what the tokenizer puts before and after a text; None if that cannot be told."""
    bare = processor.encode("a", add_special_tokens=False)
    full = processor.encode("a", add_special_tokens=True)
    for start in range(len(full) - len(bare) + 1):
        if bare and full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    return None


def _check_ids(tokens: np.ndarray, sizes: list[int], vocab_size: int, documents: int) -> None:
    """Refuse an id past the vocabulary, naming id, document and position."""
    wrong = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
    if len(wrong):
        place = int(wrong[0])
        ends = np.cumsum(sizes)
        inside = int(np.searchsorted(ends, place, side="right"))
        position = place - int(ends[inside]) + sizes[inside]
        raise InputRefused(
            f"tokenizer: id {int(tokens[place])} at position {position} of document "
            f"{documents - len(sizes) + inside + 1}, but vocab_size is {shown(vocab_size)}. "
            "Use the model's own tokenizer."
        )


class _Progress:
    """A line that counts documents and tokens, shown on a terminal once it takes a while."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._documents = self._tokens = 0
        self._status = None

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def advance(self, documents: int, tokens: int) -> None:
        """Count more, and show the count if it is time."""
        self._documents += documents
        self._tokens += tokens
        seconds = time.monotonic() - self._start
        if self._status is None and (seconds < SHOWN_AFTER_SECONDS or not sys.stderr.isatty()):
            return
        line = f"tokenizing: {self._documents:,} documents, {self._tokens:,} tokens"
        line += f" ({self._tokens / seconds:,.0f} a second)"
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status(line)
            self._status.start()
        self._status.update(line)
