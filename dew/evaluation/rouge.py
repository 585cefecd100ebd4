"""ROUGE: how many words, pairs and common subsequences a summary shares with the right one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dew.artifacts import Predictions
from dew.errors import InputRefused
from dew.evaluation.written_texts import WrittenTexts

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
UNSTEMMED = 3
"""Letters of a word that is never cut."""
Stem = Callable[[str], str]
_OTHER = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Rouge:
    """The mean F-measure of one kind of ROUGE over a whole pass, from 0 to 1.

    Args:
        kind: one of `KINDS`.
        texts: what was written, and the right texts.
        use_stemmer: whether words count by their stems, as nltk's Porter stemmer cuts them.

    Raises:
        InputRefused: no such kind; stems without nltk.

    Source: Lin 2004, as rouge_score 0.1.2 computes it.
    """

    kind: str
    texts: WrittenTexts
    use_stemmer: bool = False
    reads: type = Predictions

    def __post_init__(self) -> None:
        if self.use_stemmer:
            porter_stems()
        if self.kind not in KINDS:
            raise InputRefused(f"score {self.kind!a:.100} is not known: {', '.join(KINDS)}")

    @property
    def name(self) -> str:
        """The kind."""
        return self.kind

    def __call__(self, scored: Predictions, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the sum of the scores and how many there are, float64 [2]."""
        stem = porter_stems() if self.use_stemmer else None
        found = [
            rouge(self.kind, written, right, stem=stem)
            for written, right in self.texts.pairs(scored, batch)
        ]
        return np.array([sum(found), len(found)], np.float64)

    def merge(self, total: np.ndarray, part: np.ndarray) -> np.ndarray:
        """Return both batches' sums."""
        return total + part

    def finalize(self, total: np.ndarray) -> float:
        """Return the mean.

        Raises:
            ValueError: no text of the pass counts.
        """
        if not total[1]:
            raise ValueError(f"{self.kind}: no text of this pass counts")
        return float(total[0] / total[1])


def rouge(kind: str, written: str, right: str, *, stem: Stem | None = None) -> float:
    """Return the F-measure of a text against the right one.

    Args:
        kind: one of `KINDS`; "rougeLsum" takes each line for a sentence.
        written, right: any texts; case and all but letters a to z and digits do not count.
        stem: what a word counts as; None for itself.
    """
    if kind == "rougeLsum":
        sentences = (
            [words(line, stem) for line in t.split("\n") if line] for t in (right, written)
        )
        return _whole_text(*sentences)
    due, found = words(right, stem), words(written, stem)
    if kind == "rougeL":
        shared = int(_common(due, found)[-1, -1]) if due and found else 0
        return _f(shared, len(found), len(due))
    size = int(kind.removeprefix("rouge"))
    due, found = (
        Counter(tuple(part[i : i + size]) for i in range(len(part) - size + 1))
        for part in (due, found)
    )
    return _f((due & found).total(), found.total(), due.total())


def words(text: str, stem: Stem | None = None) -> list[str]:
    """Return the words of a text in lower case, those of more than three letters by their stems."""
    found = _OTHER.sub(" ", text.lower()).split()
    if stem is None:
        return found
    return [stem(word) if len(word) > UNSTEMMED else word for word in found]


def porter_stems() -> Stem:
    """Return Porter's stemmer in nltk's extended form, which rouge_score takes too.

    Raises:
        InputRefused: nltk is absent.
    """
    try:
        from nltk.stem.porter import PorterStemmer
    except ImportError:
        raise InputRefused('ROUGE of stems is cut by nltk: pip install "dew[text]"') from None
    return PorterStemmer().stem


def _f(shared: int, found: int, due: int) -> float:
    precision, recall = shared / max(found, 1), shared / max(due, 1)
    both = precision + recall
    return 2 * precision * recall / both if both > 0 else 0.0


def _whole_text(due: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> float:
    """Return the F-measure of the words that any sentence shares in order with one that is due.

    A word counts as often as both texts have it.
    """
    left_due = Counter(word for sentence in due for word in sentence)
    left_found = Counter(word for sentence in found for word in sentence)
    sizes = left_found.total(), left_due.total()
    shared = 0
    for sentence in due:
        places = set().union(*(_places(sentence, other) for other in found))
        for place in sorted(places):
            word = sentence[place]
            if left_found[word] > 0 and left_due[word] > 0:
                shared += 1
                left_found[word] -= 1
                left_due[word] -= 1
    return _f(shared, *sizes) if all(sizes) else 0.0


def _common(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Return the lengths of the longest common subsequences of all beginnings [M + 1, N + 1]."""
    table = np.zeros((len(first) + 1, len(second) + 1), np.int64)
    numbers = {word: number for number, word in enumerate({*first, *second})}
    across = np.array([numbers[word] for word in second], np.int64)
    for row, word in enumerate(first, 1):
        above = table[row - 1]
        # A match takes the diagonal; else the larger neighbour, and the running maximum is that.
        best = np.where(across == numbers[word], above[:-1] + 1, above[1:])
        table[row, 1:] = np.maximum.accumulate(best)
    return table


def _places(first: Sequence[str], second: Sequence[str]) -> set[int]:
    """Return which words of `first` are in its longest common subsequence with `second`."""
    table = _common(first, second)
    row, column, found = len(first), len(second), set()
    while row and column:
        if first[row - 1] == second[column - 1]:
            found.add(row - 1)
            row, column = row - 1, column - 1
        elif table[row, column - 1] > table[row - 1, column]:
            column -= 1
        else:
            row -= 1
    return found
