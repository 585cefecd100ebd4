"""Questions with long contexts as windows of tokens, and answers as places in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridges.finetune.row_table import RowTable
from dew.errors import InputRefused
from dew.typing import Cutting

CHUNK_TEXTS = 256
CONTEXT = 1
"""Which of the two texts of a window the context is."""


@dataclass(frozen=True)
class Window:
    """Some tokens of one question and a part of its context.

    Args:
        example: the row that it belongs to.
        ids, kinds: the tokens, and which of the two texts each is of as the model reads it.
        offsets: int32 [L, 2], the characters of the context that each token covers; -1 at tokens
            that are none of it.
        start, end: the tokens of the answer; both `nothing` where it is not in this part.
        nothing: the token that stands for no answer: the first special one, as the family has it.
    """

    example: int
    ids: Sequence[int]
    kinds: Sequence[int]
    offsets: np.ndarray
    start: int
    end: int
    nothing: int


def answer_windows(
    tokenizer: Any, table: RowTable, *, longest: int, stride: int, nothing: int | None
) -> list[Window]:
    """Return the windows of each row, in order.

    Args:
        tokenizer: a checkpoint's `TextProcessor`.
        table: with `question`, `context`, and `text` and `start`: each answer of the row.
        longest: the most tokens of a window.
        stride: tokens of the context that a window shares with the one before.
        nothing: the id that stands for no answer, or None for the first token.

    Raises:
        InputRefused: a question that leaves no room for its context.

    Source: prepare_train_features of transformers' examples/pytorch/question-answering/run_qa.py.
    """
    cutting = Cutting(longest, strategy="only_second", stride=stride)
    found: list[Window] = []
    for first in range(0, len(table), CHUNK_TEXTS):
        rows = range(first, min(first + CHUNK_TEXTS, len(table)))
        # Spaces before a question would be cut off with it, and the context never fit.
        pairs = [(table["question"][row].lstrip(), table["context"][row]) for row in rows]
        try:
            encodings = tokenizer.encodings(pairs, cutting)
        except InputRefused as error:
            raise InputRefused(
                f"data: a question among the rows {first + 1} to {rows[-1] + 1} leaves no room "
                f"for its context within {longest} tokens and a stride of {stride}: {error}. Give "
                "a larger --max_length or a smaller --doc_stride"
            ) from None
        for row, encoding in zip(rows, encodings, strict=True):
            answers = list(zip(table["text"][row], table["start"][row], strict=True))
            span = (answers[0][1], answers[0][1] + len(answers[0][0])) if answers else None
            for part in (encoding, *encoding.overflowing):
                found.append(_window(row, part, span, nothing))
    return found


def _window(row: int, encoding: Any, span: tuple[int, int] | None, nothing: int | None) -> Window:
    ids = encoding.ids
    place = ids.index(nothing) if nothing in ids else 0
    inside = np.array([part == CONTEXT for part in encoding.sequence_ids])
    offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    start = end = place
    (context,) = np.nonzero(inside)
    if span is not None and len(context):
        low, high = context[0], context[-1]
        if offsets[low, 0] <= span[0] and offsets[high, 1] >= span[1]:
            # The last token that begins at or before the answer, the first that ends behind it.
            begins = np.nonzero(offsets[low:, 0] > span[0])[0]
            behind = np.nonzero(~inside[low:])[0]
            stop = min([len(ids) - low, *begins[:1].tolist(), *behind[:1].tolist()])
            start = int(low + stop - 1)
            ends = np.nonzero(offsets[low : high + 1, 1] < span[1])[0]
            end = int(low + (ends[-1] + 1 if len(ends) else 0))
    kept = np.where(inside[:, None], offsets, -1)
    return Window(row, ids, encoding.type_ids, kept, start, end, place)
