"""Texts as the ids that a model of sounds gives: Whisper's tokens, or wav2vec 2.0's letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from bridges.audio.letters import Letters
from bridges.processing import JointProcessor
from dew.cli.command import Settings
from dew.errors import InputRefused, shown
from dew.inference.answering import start_id
from dew.inference.speech_prompts import read_prompt

MOST_UNKNOWN = 0.5
"""The share of letters that the vocabulary may lack: beyond it texts are of another spelling."""


def whisper_prompt(bundle: Any, settings: Settings) -> tuple[int, ...]:
    """Return the ids that every text begins with: the start, the language, the task and the form.

    Raises:
        InputRefused: a language or task that the checkpoint has no id for, or none given where it
            hears several.
    """
    stored = {**bundle.config, **bundle.generation_config}
    several = stored.get("lang_to_id") is not None and stored.get("is_multilingual") is not False
    asked: dict[str, Any] = {}
    if several:
        language = settings["language"] or stored.get("language")
        if language is None:
            raise InputRefused(
                "language: the model hears several, and its texts begin with the one that is "
                "spoken; give --language, as in en"
            )
        asked = {"language": language, "task": settings["speech_task"]}
    elif settings["language"]:
        asked = {"language": settings["language"]}  # refused there, with the reason
    size = bundle.config.get("vocab_size") or bundle.model.vocab_size
    prompt = read_prompt(bundle.generation_config, asked, start_id(bundle, {}), size)
    return tuple(prompt.ids(1, lambda: np.zeros(1, np.int64))[0].tolist())


def whisper_labels(
    bundle: Any, texts: Sequence[str], prompt: Sequence[int], longest: int
) -> tuple[list[list[int]], int]:
    """Return each text's ids behind the start id, its end last, and how many were cut.

    Args:
        bundle: with a tokenizer.
        texts: any number.
        prompt: what `whisper_prompt` gave.
        longest: the most labels of a text.

    Raises:
        InputRefused: no end id, or no room for a text.
    """
    ends = bundle.tokenizer.eos_token_ids
    end = bundle.config.get("eos_token_id", ends[0] if ends else None)
    room = longest - len(prompt)
    if end is None or room < 1:
        raise InputRefused(
            "the checkpoint names no id that ends a text"
            if end is None
            else f"max_target_length is {longest}: no room beside {len(prompt)} ids of the prompt"
        )
    rows, cut = [], 0
    for ids in bundle.tokenizer.encode_batch(list(texts), add_special_tokens=False):
        cut += len(ids) > room
        rows.append([*prompt[1:], *ids[:room], int(end)])
    return rows, cut


def letters_of(bundle: Any) -> Letters:
    """Return the checkpoint's letters.

    Raises:
        InputRefused: it has none that are read.
    """
    found = bundle.processor
    found = found.tokenizer if isinstance(found, JointProcessor) else found
    if not isinstance(found, Letters) or found.pad_token_id is None:
        raise InputRefused(
            "the checkpoint has no vocab.json of letters with a blank, so texts cannot be spelt; "
            "put the tokenizer's files beside the weights"
        )
    return found


def spelt(letters: Letters, texts: Sequence[str]) -> list[list[int]]:
    """Return each text's letters as ids.

    Raises:
        InputRefused: texts of another spelling than the vocabulary's.

    Source: transformers 5.24's Wav2Vec2CTCTokenizer.
    """
    numbers: Mapping[str, int] = {token: number for number, token in letters.tokens.items()}
    unknown, total = Counter(), 0
    rows = []
    for text in texts:
        text = text.upper() if letters.lowered else text
        spelling = [letters.delimiter if one == " " else one for one in text]
        unknown.update(one for one in spelling if one not in numbers)
        total += len(spelling)
        rows.append([numbers.get(one, numbers.get(letters.unknown, 0)) for one in spelling])
    if unknown.total() > MOST_UNKNOWN * total:
        lacking = ", ".join(shown(one) for one, _ in unknown.most_common(8))
        known = "".join(sorted(one for one in numbers if len(one) == 1))[:60]
        raise InputRefused(
            f"data: {unknown.total()} of {total} letters are not in the vocabulary ({lacking}); it "
            f"has {shown(known)}. Write the texts in its case and alphabet"
        )
    return rows


def places_needed(labels: Sequence[int]) -> int:
    """Return the fewest places of a sound that letters fit into: a blank parts equal ones."""
    return len(labels) + sum(one == two for one, two in pairwise(labels))
