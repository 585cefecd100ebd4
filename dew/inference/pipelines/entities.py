"""Entities: a tagger's scores of tokens, put together to words and to spans of one tag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

STRATEGIES = ("none", "simple", "first", "average", "max")
"""How tokens are put together, as transformers names it."""
BY_WORD = ("first", "average", "max")

Joined = Callable[[list[str]], str]


@dataclass(frozen=True)
class Tagged:
    """A token, or a word, with what the model gives for it.

    Args:
        word: its spelling.
        scores: float32 [C], one a label.
        start, end: the characters that it covers.
        index: its place among the tokens.
        inside: whether it goes on with the word before it.
    """

    word: str
    scores: np.ndarray
    start: int
    end: int
    index: int = 0
    inside: bool = False


@dataclass
class Entity:
    """A token, a word or a span with its label; `label` bears the prefix of its scheme, if any."""

    label: str
    score: np.float32
    word: str
    start: int
    end: int
    index: int | None = field(default=None)


def found_entities(
    tokens: Sequence[Tagged], strategy: str, names: Sequence[str], joined: Joined
) -> list[Entity]:
    """Return a text's entities.

    Args:
        tokens: those of the text, special ones left out.
        strategy: one of `STRATEGIES`: each token; spans of one tag by each token's own label; or
            by labels that the tokens of a word share: the first token's, that of their mean
            scores, or that of the highest score.
        names: the labels'.
        joined: the text of some tokens' spellings.

    Returns:
        Labels that are kept whole with "none", and without `B-` and `I-` otherwise.
    """
    if strategy in BY_WORD:
        single = [_word(part, strategy, names, joined) for part in _words(tokens)]
    else:
        single = [_labelled(token, token.scores, names, token.word) for token in tokens]
    return single if strategy == "none" else [_span(part, joined) for part in _spans(single)]


def merged_windows(entities: Sequence[Entity]) -> list[Entity]:
    """Return the entities of overlapping windows, of two that overlap the longer or likelier."""
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda one: one.start):
        before = kept[-1] if kept else None
        if before is None or not before.start <= entity.start < before.end:
            kept.append(entity)
        elif (entity.end - entity.start, entity.score) > (before.end - before.start, before.score):
            kept[-1] = entity
    return kept


def _labelled(token: Tagged, scores: np.ndarray, names: Sequence[str], word: str) -> Entity:
    best = int(scores.argmax())
    return Entity(names[best], scores[best], word, token.start, token.end, token.index)


def _words(tokens: Sequence[Tagged]) -> list[list[Tagged]]:
    words: list[list[Tagged]] = []
    for token in tokens:
        if token.inside and words:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _word(part: list[Tagged], strategy: str, names: Sequence[str], joined: Joined) -> Entity:
    if strategy == "first":
        scores = part[0].scores
    elif strategy == "max":
        scores = max(part, key=lambda token: token.scores.max()).scores
    else:
        scores = np.mean([token.scores for token in part], axis=0)
    made = _labelled(part[0], scores, names, joined([token.word for token in part]))
    made.end = part[-1].end
    return made


def _spans(entities: Sequence[Entity]) -> list[list[Entity]]:
    """Return the runs of one tag; a label that begins a span begins one."""
    spans: list[list[Entity]] = []
    for entity in entities:
        begins, tag = _tag(entity.label)
        if spans and not begins and tag == _tag(spans[-1][-1].label)[1]:
            spans[-1].append(entity)
        else:
            spans.append([entity])
    return spans


def _tag(label: str) -> tuple[bool, str]:
    return label.startswith("B-"), label[2:] if label[:2] in ("B-", "I-") else label


def _span(part: list[Entity], joined: Joined) -> Entity:
    score: Any = np.mean([entity.score for entity in part])
    return Entity(
        label=part[0].label.split("-", 1)[-1],
        score=score,
        word=joined([entity.word for entity in part]),
        start=part[0].start,
        end=part[-1].end,
    )
