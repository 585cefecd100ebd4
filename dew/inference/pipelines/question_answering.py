"""Question answering: questions with contexts in, the answers that stand in them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dew.errors import InputRefused, shown
from dew.inference.pipelines.answer_spans import Spans, likeliest_spans
from dew.inference.pipelines.task import Options
from dew.inference.pipelines.text_task import TextTask, checked_count
from dew.inference.row_outputs import Row
from dew.typing import Cutting

LONGEST, STRIDE = 384, 128
"""The most tokens of a window, and how many it shares with the one before, where nobody says."""
FIELDS = ("question", "context")


@dataclass(frozen=True)
class _Window:
    """A question with a part of its context: what the model reads and where answers may stand."""

    encoding: Any
    row: Row
    allowed: np.ndarray


class QuestionAnswering(TextTask):
    """Finds answers in contexts, with the dicts of transformers 4, whose pipeline had the task.

    Options of a call:

    - `top_k`: the most answers, the likeliest first; with more than one a result is a list.
    - `doc_stride`: tokens that a window shares with the one before; 128, or half a window.
    - `max_seq_len`: tokens of a window with its question; 384, or what the model takes.
    - `max_answer_len`: the most tokens of an answer.
    - `handle_impossible_answer`: whether the empty answer is among them.
    - `align_to_words`: whether answers begin and end with whole words.
    - `max_question_len`, `padding`: taken as there, without effect.

    A result is `{"score": ..., "start": ..., "end": ..., "answer": ...}`, characters of the
    context.
    """

    name = "question-answering"
    fits = ("question-answering",)
    reads = '{"question": a text, "context": a text}'
    gives = ("start_logits", "end_logits")
    remedy = "pass a smaller max_seq_len"
    kinds_unstated = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "top_k": 1,
        "doc_stride": None,
        "max_seq_len": None,
        "max_answer_len": 15,
        "handle_impossible_answer": False,
        "align_to_words": True,
        "max_question_len": None,
        "padding": None,
    }

    def __call__(
        self,
        inputs: Any = None,
        second: Any = None,
        *,
        question: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        data: Any = None,
        **options: Any,
    ) -> Any:
        """Answer; see `Task`.

        Args:
            inputs: a dict of a question and its context, several, or the question alone.
            second: the question's context, where the question stands alone.
            question: one or several, beside `context`.
            context: one for all questions, or one for each.
            data: another name of `inputs`.
            **options: as for every task.
        """
        given = data if inputs is None else inputs
        if isinstance(given, str) and isinstance(second, str):
            given = {"question": given, "context": second}
        if given is None:
            given = self._paired(question, context)
        elif second is not None and not isinstance(second, str):
            given = [given, second]
        if isinstance(given, list | tuple) and len(given) == 1:
            given = given[0]
        return super().__call__(given, **options)

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        for name in ("top_k", "max_answer_len"):
            options[name] = self.defaults[name] if options[name] is None else options[name]
            checked_count(name, options[name])
        longest = options["max_seq_len"]
        if longest is None:
            longest = min(self.longest or LONGEST, LONGEST)
        checked_count("max_seq_len", longest)
        stride = options["doc_stride"]
        stride = min(longest // 2, STRIDE) if stride is None else stride
        if type(stride) is not int or not 0 <= stride <= longest:
            raise InputRefused(
                f"doc_stride is {shown(stride)}; expected a whole number of at most the "
                f"{longest} tokens of a window (max_seq_len)"
            )
        # The context is the text that is cut, on whichever side it stands.
        first = getattr(self.processor, "padding_side", "right") == "right"
        cutting = Cutting(longest, "only_second" if first else "only_first", stride)
        return {**options, "cutting": cutting, "question_first": first}

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return each question's answer or answers."""
        asked = [self._asked(item) for item in items]
        windows = [self._windows(*pair, options) for pair in asked]
        rows = [window.row for parts in windows for window in parts]
        found = self.outputs(rows, batch_size)
        results, first = [], 0
        for (_, context), parts in zip(asked, windows, strict=True):
            spans = [
                self._spans(window, one, options)
                for window, one in zip(parts, found[first : first + len(parts)], strict=True)
            ]
            first += len(parts)
            answers = _answers(context, parts, spans, options)
            results.append(answers[0] if len(answers) == 1 else answers)
        return results

    def _paired(self, question: Any, context: Any) -> list[dict[str, Any]]:
        """Return a dict for each question, from questions and contexts apart."""
        if question is None or context is None:
            raise InputRefused(f"{self.name}: pass question= and context=, or {self.reads}")
        for given in (question, context):
            if not isinstance(given, str | Sequence):
                raise InputRefused(f"{self.name}: {shown(given)} was given; expected texts")
        questions = [question] if isinstance(question, str) else list(question)
        contexts = [context] * len(questions) if isinstance(context, str) else list(context)
        if len(questions) != len(contexts):
            raise InputRefused(
                f"{self.name}: {len(questions)} questions with {len(contexts)} contexts; expected "
                "one context for all, or one for each"
            )
        return [
            dict(zip(FIELDS, pair, strict=True)) for pair in zip(questions, contexts, strict=True)
        ]

    def _asked(self, item: Any) -> tuple[str, str]:
        if not isinstance(item, Mapping) or not set(FIELDS) <= set(item):
            raise InputRefused(f"{self.name}: an input is {shown(item)}; expected {self.reads}")
        for field in FIELDS:
            if not self.text(item[field]):
                raise InputRefused(f"{self.name}: a {field} is empty; expected {self.reads}")
        return item["question"], item["context"]

    def _windows(self, question: str, context: str, options: Options) -> list[_Window]:
        pair = (question, context) if options["question_first"] else (context, question)
        try:
            (whole,) = self.encoded([pair], options["cutting"])
        except InputRefused as error:
            raise InputRefused(
                f"{self.name}: the question {shown(question)} leaves no room for its context "
                f"within {options['cutting'].max_tokens} tokens and a doc_stride of "
                f"{options['cutting'].stride} ({error}); shorten it, or pass a smaller doc_stride"
            ) from None
        part = 1 if options["question_first"] else 0
        first = self.processor.special_tokens.get("cls_token")
        mark = None if first is None else self.processor.token_id(first)
        return [
            _Window(
                encoding=one,
                row=self.row(one, text=question),
                allowed=np.array(
                    [
                        side == part or token == mark
                        for side, token in zip(one.sequence_ids, one.ids, strict=True)
                    ]
                ),
            )
            for one in (whole, *whole.overflowing)
        ]

    def _spans(self, window: _Window, found: Mapping[str, np.ndarray], options: Options) -> Spans:
        # Some spans become one answer where they are widened to words.
        count = options["top_k"] * 2 + 10 if options["align_to_words"] else options["top_k"]
        return likeliest_spans(
            found["start_logits"],
            found["end_logits"],
            window.allowed,
            count=count,
            longest=options["max_answer_len"],
        )


def _answers(
    context: str, windows: Sequence[_Window], spans: Sequence[Spans], options: Options
) -> list[dict[str, Any]]:
    """Return the answers, the likeliest first; one text's scores in several places are summed."""
    found: dict[str, dict[str, Any]] = {}
    part = 1 if options["question_first"] else 0
    for window, of_window in zip(windows, spans, strict=True):
        places = zip(of_window.starts, of_window.ends, of_window.scores, strict=True)
        for first, last, score in places:
            whole = options["align_to_words"]
            start, end = _characters(window.encoding, int(first), int(last), part, whole)
            answer = context[start:end]
            known = found.get(answer.lower())
            if known is not None:
                known["score"] += float(score)
            else:
                found[answer.lower()] = {
                    "score": float(score),
                    "start": start,
                    "end": end,
                    "answer": answer,
                }
    answers = list(found.values())
    if options["handle_impossible_answer"]:
        nothing = min(one.nothing for one in spans)
        answers.append({"score": nothing, "start": 0, "end": 0, "answer": ""})
    return sorted(answers, key=lambda one: one["score"], reverse=True)[: options["top_k"]]


def _characters(
    encoding: Any, first: int, last: int, part: int, whole_words: bool
) -> tuple[int, int]:
    """Return the characters of the context that the tokens from `first` to `last` cover."""
    if whole_words:
        words = encoding.token_to_word(first), encoding.token_to_word(last)
        if None not in words:
            start = encoding.word_to_chars(words[0], part)
            end = encoding.word_to_chars(words[1], part)
            if start is not None and end is not None:
                return start[0], end[1]
    return encoding.offsets[first][0], encoding.offsets[last][1]
