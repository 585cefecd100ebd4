"""Ids of a text grouped to its words, as the times of words need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

Decode = Callable[[Sequence[int]], str]

UNSPACED = ("chinese", "japanese", "thai", "lao", "myanmar", "cantonese")
"""The languages that are written without spaces: every character is a word."""
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
OPENING = "\"'“¡¿([{-"
CLOSING = "\"'.。,\uff0c!\uff01?\uff1f:\uff1a”)]}、"
UNFINISHED = "\ufffd"


class Word(NamedTuple):
    """A word, and the places of its ids."""

    text: str
    places: tuple[int, ...]


def words_of(
    ids: Sequence[int], decode: Decode, *, language: str | None = None, first_special: int
) -> list[Word]:
    """Return the words of a text, punctuation with the word that it goes with.

    Args:
        ids: of the text.
        decode: ids to their text.
        language: its name, as in "english"; None counts as one with spaces.
        first_special: ids from it on are words of their own.

    Source: transformers 5.24's Whisper tokenizer, after Whisper's own timing.py.
    """
    words = _whole_characters(ids, decode)
    if (language or "english") not in UNSPACED:
        words = _by_spaces(ids, words, first_special)
    return _with_closing(_with_opening(words))


def _whole_characters(ids: Sequence[int], decode: Decode) -> list[Word]:
    """Return the shortest runs of ids that are whole characters."""
    whole, words, waiting, written = decode(ids), [], [], 0
    for place in range(len(ids)):
        waiting.append(place)
        text = decode([ids[at] for at in waiting])
        hole = written + text.index(UNFINISHED) if UNFINISHED in text else None
        # A hole that the whole text has too is no character that goes on.
        if hole is None or hole >= len(whole) or whole[hole] == UNFINISHED:
            words.append(Word(text, tuple(waiting)))
            written, waiting = written + len(text), []
    return words


def _by_spaces(ids: Sequence[int], parts: Sequence[Word], first_special: int) -> list[Word]:
    """Return parts joined to words: a space, a special id or punctuation begins one."""
    words: list[Word] = []
    for part in parts:
        # The empty text counts as punctuation, as it is in every text.
        begins = part.text.startswith(" ") or part.text.strip() in PUNCTUATION
        if begins or not words or ids[part.places[0]] >= first_special:
            words.append(part)
        else:
            words[-1] = _joined(words[-1], part)
    return words


def _with_opening(words: Sequence[Word]) -> list[Word]:
    """Return words with opening punctuation that stands alone put before the next one."""
    found: list[Word] = []
    for word in reversed(words):
        if found and word.text.startswith(" ") and word.text.strip() in OPENING:
            found[-1] = _joined(word, found[-1])
        else:
            found.append(word)
    return found[::-1]


def _with_closing(words: Sequence[Word]) -> list[Word]:
    """Return words with closing punctuation that stands alone put behind the one before."""
    found: list[Word] = []
    for word in words:
        if found and not found[-1].text.endswith(" ") and word.text in CLOSING:
            found[-1] = _joined(found[-1], word)
        else:
            found.append(word)
    return [word for word in found if word.text]


def _joined(first: Word, second: Word) -> Word:
    return Word(first.text + second.text, first.places + second.places)
