"""Scores of written texts: rouge_score, jiwer and sacrebleu are right, however a pass is cut."""

from __future__ import annotations

import numpy as np
import pytest

from bridges.finetune.bleu import Bleu
from dew.artifacts import Predictions
from dew.evaluation.error_rates import ErrorRate
from dew.evaluation.rouge import KINDS, Rouge, porter_stems, rouge, words
from dew.evaluation.written_texts import WrittenTexts

VOCABULARY = [
    "the",
    "a",
    "fair,",
    "foul",
    "day",
    "Night.\n",
    "air's",
    "3rd",
    "so",
    "thunder",
    "thundering",
    "Fairest",
    "\n",
    "in",
    "rain",
    "-",
    "it's",
    "fog",
]


def texts(count: int, seed: int) -> list[str]:
    draws = np.random.default_rng(seed)
    lengths = draws.integers(1, 25, count)
    return [" ".join(draws.choice(VOCABULARY, length)) for length in lengths]


WRITTEN, RIGHT = texts(12, 1), texts(12, 2)
WRITTEN[0], WRITTEN[3], RIGHT[5] = "", RIGHT[3], "so fair"


def score(metric, size: int = 5) -> float:
    """Return a metric's score of all texts, some at a time, a filler row in each batch."""
    total = None
    for start in range(0, len(RIGHT), size):
        rows = [*range(start, min(start + size, len(RIGHT))), 0]
        weights = np.ones((len(rows), 3))
        weights[-1] = 0
        written = np.array([[row] for row in rows])
        part = metric(Predictions({"written": written}, weights), {"record": np.array(rows)})
        total = part if total is None else metric.merge(total, part)
    return metric.finalize(total)


SIDES = WrittenTexts(lambda ids: WRITTEN[ids[0]], RIGHT)


@pytest.mark.parametrize("stems", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_rouge_is_rouge_scores(kind, stems):
    scorers = pytest.importorskip("rouge_score.rouge_scorer")
    scorer = scorers.RougeScorer([kind], use_stemmer=stems)
    pairs = zip(RIGHT, WRITTEN, strict=True)
    wanted = np.mean([scorer.score(right, written)[kind].fmeasure for right, written in pairs])
    np.testing.assert_allclose(score(Rouge(kind, SIDES, stems)), wanted, rtol=1e-12)


def test_stems_are_the_words_that_porters_stemmer_gives():
    """rouge_score's own tokenizer on inflected words, short ones and numbers."""
    tokenize = pytest.importorskip("rouge_score.tokenize").tokenize
    text = "Thunders, thundering thundered; fairly fairest is was 3rds dying skies generously"
    stem = porter_stems()
    assert words(text, stem) == tokenize(text, type("S", (), {"stem": staticmethod(stem)}))
    assert words(text, stem)[:3] == ["thunder"] * 3
    assert rouge("rouge1", "thundering", "thunders", stem=stem) == 1
    assert rouge("rouge1", "thundering", "thunders") == 0


@pytest.mark.parametrize("kind", ["wer", "cer"])
def test_error_rates_are_jiwers(kind):
    jiwer = pytest.importorskip("jiwer")
    # jiwer knows spaces alone as white space.
    written, right = ([t.replace("\n", " ") for t in side] for side in (WRITTEN, RIGHT))
    sides = WrittenTexts(lambda ids: written[ids[0]], right)
    wanted = getattr(jiwer, kind)(right, written)
    np.testing.assert_allclose(score(ErrorRate(kind, sides)), wanted, rtol=1e-12)


def test_bleu_is_sacrebleus():
    sacrebleu = pytest.importorskip("sacrebleu")
    wanted = sacrebleu.corpus_bleu(WRITTEN, [RIGHT]).score
    np.testing.assert_allclose(score(Bleu(SIDES)), wanted, rtol=1e-12)
