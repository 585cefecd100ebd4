"""From a letter for each place of a sound to the text: connectionist temporal classification."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from dew.errors import InputRefused
from dew.inference.bundle import Bundle


def collapsed(ids: Sequence[int], blank: int) -> list[int]:
    """Return the ids with equal ones that stand together joined, and without the blank.

    Args:
        ids: one for each place.
        blank: the id that parts equal letters and stands where nothing is said.

    Source: Graves et al. 2006, section 3.1.
    """
    return [int(one) for one, _ in groupby(ids) if one != blank]


def letter_ids(logits: Any, blank: int, places: Sequence[int] | None = None) -> list[list[int]]:
    """Return the ids of each sound's likeliest letters.

    Args:
        logits: [N, T, V].
        blank: the blank's id.
        places: how many of the T places of each sound are no padding; None for all.
    """
    return [collapsed(row, blank) for row in likeliest(logits, places)]


def likeliest(logits: Any, places: Sequence[int] | None = None) -> list[list[int]]:
    """Return the likeliest id of each place of each sound; the arguments are `letter_ids`'s."""
    best = np.argmax(np.asarray(logits), axis=-1)
    ends = [best.shape[1]] * len(best) if places is None else places
    return [row[: max(int(end), 0)].tolist() for row, end in zip(best, ends, strict=True)]


def letter_texts(bundle: Bundle, logits: Any, attention_mask: Any = None) -> list[str]:
    """Return what was said in each sound.

    Args:
        bundle: whose processor holds the letters, and whose model gave the logits.
        logits: [N, T, V].
        attention_mask: [N, S] of the sounds' samples, 1 where there is sound; None for all.

    Raises:
        InputRefused: the checkpoint has no letters that are read.
    """
    letters: Any = bundle.processor
    if not hasattr(letters, "decode"):
        raise InputRefused(
            "the checkpoint has no vocab.json of letters, so ids cannot be turned into text; put "
            "the tokenizer's files beside the weights"
        )
    places = None
    if attention_mask is not None:
        places = bundle.model.places_of(np.asarray(attention_mask).sum(axis=1))
    return [letters.decode(row) for row in likeliest(logits, places)]


def word_places(letters: Sequence[tuple[str, int, int]], gap: str) -> list[tuple[str, int, int]]:
    """Return each word with the places that it stands at.

    Args:
        letters: each letter with its places `[start, end)`, as `Letters.places` gives them.
        gap: what stands between words.

    Source: transformers 5.24's Wav2Vec2CTCTokenizer, whose `word_offsets` these are.
    """
    words = []
    for between, run in groupby(letters, key=lambda letter: letter[0] == gap):
        if not between:
            parts = list(run)
            words.append(("".join(part[0] for part in parts), parts[0][1], parts[-1][2]))
    return words
