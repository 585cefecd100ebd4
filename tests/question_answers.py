"""Questions for random models, and what transformers 4.57.6 answers them with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline_four import answers
from pipeline_texts import LONG, TEXTS, write_encoder

STORED = Path(__file__).with_name("question_answers.json")
"""Made by `answers_of_four`; the slow test holds it to a fresh run."""
CLASSES = ("BertForQuestionAnswering", "RobertaForQuestionAnswering")
CONTEXT = (
    "When shall we three meet again, in thunder, lightning, or in rain? \N{GRINNING FACE} Fogs!"
)
LONG_CONTEXT = f"{LONG[:300]} Macbeth is the king of Scotland. {LONG[:200]}"
CASES: tuple[tuple[Any, dict[str, Any]], ...] = (
    *(({"question": "who?", "context": text}, {}) for text in TEXTS if len(text) > 3),
    ({"question": "who is the king?", "context": CONTEXT}, {}),
    ({"question": "who?", "context": CONTEXT}, {"top_k": 4}),
    ({"question": "who?", "context": CONTEXT}, {"top_k": 3, "align_to_words": False}),
    ({"question": "who?", "context": CONTEXT}, {"max_answer_len": 2, "top_k": 2}),
    ({"question": "who?", "context": CONTEXT}, {"handle_impossible_answer": True, "top_k": 3}),
    ({"question": "who is the king?", "context": LONG_CONTEXT}, {}),
    ({"question": "who?", "context": LONG_CONTEXT}, {"doc_stride": 9, "top_k": 3}),
    ({"question": "who?", "context": LONG_CONTEXT}, {"max_seq_len": 40, "doc_stride": 5}),
    (
        {"question": "who?", "context": LONG_CONTEXT},
        {"handle_impossible_answer": True, "max_seq_len": 32, "doc_stride": 4},
    ),
    ([{"question": "who?", "context": CONTEXT}, {"question": "what?", "context": "rain"}], {}),
)


def write_answerer(folder: Path, architecture: str) -> Path:
    """Write the random model that the stored answers are of."""
    return write_encoder(folder, architecture, num_labels=2, num_hidden_layers=2, seed=7)


def answers_of_four(packages: Path, folder: Path) -> list[Any]:
    """Return what transformers 4 answers.

    Args:
        packages: the folder that it is installed in.
        folder: the model's.
    """
    calls = [("question-answering", str(folder), asked, options) for asked, options in CASES]
    return answers(packages, calls)
