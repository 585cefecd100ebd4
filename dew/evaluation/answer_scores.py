"""Exact match and F1 of answers that are parts of a context, put together from its windows."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dew.artifacts import Predictions
from dew.errors import InputRefused

KINDS = ("exact_match", "f1")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MARKS = str.maketrans("", "", string.punctuation)

Candidate = tuple[float, int, int]
"""A score, and the first and last character of an answer in its context."""


@dataclass(frozen=True)
class Found:
    """What the windows of one example gave so far.

    Args:
        candidates: the best spans, the best one first.
        nothing: the lowest score of no answer in any window.
    """

    candidates: tuple[Candidate, ...]
    nothing: float


@dataclass(frozen=True)
class Reading:
    """What the windows of a pass were made of.

    Args:
        contexts: the text that each example's answer is in.
        answers: the right answers of each example; none where there is none.
        examples: the example of each window.
        offsets: of each window int [L, 2], the characters of the context that a token covers; -1
            where it is none of it.
        nothing: the token of each window that stands for no answer.
        n_best: starts and ends that are paired, and spans that are kept.
        longest: tokens of an answer, at most.
        threshold: how much likelier no answer must be than the best one to be given, where some
            example has none.
    """

    contexts: Sequence[str]
    answers: Sequence[Sequence[str]]
    examples: Sequence[int]
    offsets: Sequence[np.ndarray] = field(repr=False)
    nothing: Sequence[int]
    n_best: int = 20
    longest: int = 30
    threshold: float = 0.0

    @property
    def may_be_nothing(self) -> bool:
        """Whether some example has no answer, as in SQuAD 2."""
        return not all(map(len, self.answers))

    def window(self, number: int, starts: np.ndarray, ends: np.ndarray) -> Found:
        """Return the best spans of one window, of its logits [L].

        Source: postprocess_qa_predictions of transformers' examples, utils_qa.py.
        """
        offsets, count = self.offsets[number], len(self.offsets[number])
        starts, ends = starts[:count].astype(np.float32), ends[:count].astype(np.float32)
        place = self.nothing[number]
        first, last = (np.argsort(side)[-1 : -self.n_best - 1 : -1] for side in (starts, ends))
        pairs = [(s, e) for s in first for e in last]
        kept = [
            (float(starts[s] + ends[e]), int(offsets[s, 0]), int(offsets[e, 1]))
            for s, e in pairs
            if offsets[s, 0] >= 0 and offsets[e, 0] >= 0 and s <= e < s + self.longest
        ]
        kept.sort(key=lambda candidate: -candidate[0])
        return Found(tuple(kept[: self.n_best]), float(starts[place] + ends[place]))

    def answer(self, example: int, found: Found) -> str:
        """Return the answer to one example; empty for none."""
        context = self.contexts[example]
        texts = [(score, context[start:end]) for score, start, end in found.candidates]
        best = next(((score, text) for score, text in texts if text), None)
        if not self.may_be_nothing:
            return texts[0][1] if texts and best is not None else "empty"
        if best is None or found.nothing - best[0] > self.threshold:
            return ""
        return best[1]


@dataclass(frozen=True)
class AnswerScore:
    """One score of the answers of a whole pass, from 0 to 100.

    Args:
        kind: one of `KINDS`.
        reading: what the windows were made of.
        record: the field of the batch that names each row's window.

    Raises:
        InputRefused: no such kind.

    Source: SQuAD's evaluation scripts, versions 1.1 and 2.0.
    """

    kind: str
    reading: Reading
    record: str = "record"
    reads: type = Predictions

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputRefused(f"score {self.kind!a:.100} is not known: {', '.join(KINDS)}")

    @property
    def name(self) -> str:
        """The kind."""
        return self.kind

    def __call__(self, scored: Predictions, batch: Mapping[str, np.ndarray]) -> dict[int, Found]:
        """Return what the windows of a batch gave, by example."""
        starts, ends = (np.asarray(scored.outputs[f"{n}_logits"]) for n in ("start", "end"))
        numbers = np.asarray(batch[self.record])
        real = np.asarray(batch.get("weights", np.ones(len(numbers)))) > 0
        total: dict[int, Found] = {}
        for row in np.flatnonzero(real):
            window = int(numbers[row])
            found = self.reading.window(window, starts[row], ends[row])
            total = self.merge(total, {self.reading.examples[window]: found})
        return total

    def merge(self, total: dict[int, Found], part: dict[int, Found]) -> dict[int, Found]:
        """Return the best spans of both."""
        for example, found in part.items():
            before = total.get(example)
            if before is not None:
                both = sorted(before.candidates + found.candidates, key=lambda one: -one[0])
                lowest = min(before.nothing, found.nothing)
                found = Found(tuple(both[: self.reading.n_best]), lowest)
            total[example] = found
        return total

    def finalize(self, total: dict[int, Found]) -> float:
        """Return the mean over the examples.

        Raises:
            ValueError: no window of the pass counts.
        """
        if not total:
            raise ValueError(f"{self.kind}: no window of this pass counts")
        score = exact_match if self.kind == "exact_match" else f1
        scores = []
        for example, found in total.items():
            given, right = self.reading.answer(example, found), self.reading.answers[example]
            scores.append(max(score(given, answer) for answer in right or ("",)))
        return 100.0 * float(np.mean(scores))


def exact_match(given: str, right: str) -> float:
    """Return 1 where both are the same once normalised, else 0."""
    return float(normalised(given) == normalised(right))


def f1(given: str, right: str) -> float:
    """Return the F1 of the words that both share; of no words at all, whether neither has any."""
    found, due = normalised(given).split(), normalised(right).split()
    if not found or not due:
        return float(found == due)
    shared = (Counter(found) & Counter(due)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(found), shared / len(due)
    return 2 * precision * recall / (precision + recall)


def normalised(text: str) -> str:
    """Return a text in lower case without punctuation, articles and spare white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_MARKS)).split())
