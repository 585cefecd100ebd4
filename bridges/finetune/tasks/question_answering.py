"""`question-answering`: where in a context the answer to a question starts and ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bridges.finetune.answer_windows import Window, answer_windows
from bridges.finetune.columns import chosen_columns
from bridges.finetune.encoded_rows import EncodedRows, Ragged
from bridges.finetune.examples import sides
from bridges.finetune.learner import Learner
from bridges.finetune.outputs_learner import outputs_learner
from bridges.finetune.row_table import Examples, RowTable, refuse_rows, row_table, split_sides
from bridges.finetune.table_task import TableTask, Told, needed_tokenizer
from dew.cli.command import Settings
from dew.errors import InputRefused, shown
from dew.objectives.criteria import SpanLoss

TEXTS = (("question", "context"), ("question", "passage"), ("question", "text"))
ANSWERS = (("answers",), ("answer",))
ENDS = ("start_positions", "end_positions")


class QuestionAnswering(TableTask):
    """A head that points at the answer's first and last token; see `Task`."""

    name = "question-answering"
    pipeline = "question-answering"
    settings: Settings

    def read(self, settings: Settings) -> Examples:
        """Return the table's questions, contexts and answers.

        Raises:
            InputRefused: no such columns, an answer that is not where it is said to be.
        """
        self.settings = settings
        self._windows: dict[int, tuple[Any, list[Window]]] = {}
        train, validation = sides(settings)
        columns = _columns(settings, train)
        tables = [_table(part, columns) for part in (train, validation) if part is not None]
        if not any(map(len, tables[0]["text"])):
            raise InputRefused("data: no row has an answer")
        held = tables[1] if validation is not None else None
        return Examples(*split_sides(tables[0], held, settings))

    def loading(self, examples: Examples) -> dict[str, Any]:
        """Return the task whose head the model is to have."""
        return {"task": self.pipeline}

    def learner(self, bundle: Any, *, remat: bool) -> Learner:
        """Return the model with the loss of both ends."""
        return outputs_learner(bundle, SpanLoss(), remat=remat)

    def windows(self, settings: Settings, learner: Learner, table: RowTable) -> list[Window]:
        """Return the windows of a table, made once."""
        if id(table) not in self._windows:
            tokenizer = needed_tokenizer(learner)
            cls = tokenizer.special_tokens.get("cls_token")
            nothing = tokenizer.bos_token_id if cls is None else tokenizer.token_id(cls)
            longest = self.longest(settings, learner)
            found = answer_windows(
                tokenizer, table, longest=longest, stride=settings["doc_stride"], nothing=nothing
            )
            self._windows[id(table)] = (table, found)  # the table lives as long as its number
        return self._windows[id(table)][1]

    def rows(self, settings: Settings, learner: Learner, table: RowTable) -> tuple[Any, int]:
        """Return a row a window, and how many contexts took several."""
        windows = self.windows(settings, learner, table)
        padding = needed_tokenizer(learner).pad_token_id or 0
        beside = {}
        if "token_type_ids" in learner.input_names and any(any(w.kinds) for w in windows):
            beside["token_type_ids"] = Ragged.of([window.kinds for window in windows])
        ends = zip(ENDS, ([w.start for w in windows], [w.end for w in windows]), strict=True)
        rows = EncodedRows(
            Ragged.of([window.ids for window in windows], padding=padding),
            beside,
            {name: np.array(places, np.int32) for name, places in ends},
            limit=self.longest(settings, learner),
        )
        several = np.bincount([window.example for window in windows], minlength=len(table)) > 1
        return rows, int(several.sum())

    def told(self, learner: Learner, examples: Examples, rows: EncodedRows) -> Told:
        """Return how many windows hold their answer, and the first row."""
        first = rows.ids.values[: rows.ids.offsets[1]].tolist()
        start, end = (int(rows.whole[name][0]) for name in ENDS)
        windows = self.windows(self.settings, learner, examples.train)
        answered = sum(window.start != window.nothing for window in windows)
        tokenizer = needed_tokenizer(learner)
        return Told(
            targets=2 * len(rows),
            labels={"with the answer": answered, "without it": len(rows) - answered},
            example=tokenizer.decode(first, skip_special_tokens=False),
            example_label=tokenizer.decode(first[start : end + 1], skip_special_tokens=False),
        )

    def metrics(self, learner: Learner, examples: Any) -> Sequence[Any]:
        """Return the loss, exact match and F1."""
        from dew.evaluation.answer_scores import KINDS, AnswerScore, Reading
        from dew.evaluation.mean_loss import MeanLoss

        if examples is None:
            return (MeanLoss(),)
        settings = self.settings
        windows = self.windows(settings, learner, examples)
        reading = Reading(
            contexts=examples["context"],
            answers=examples["text"],
            examples=[window.example for window in windows],
            offsets=[window.offsets for window in windows],
            nothing=[window.nothing for window in windows],
            n_best=settings["n_best_size"],
            longest=settings["max_answer_length"],
            threshold=settings["null_score_diff_threshold"],
        )
        return (MeanLoss(), *(AnswerScore(kind, reading) for kind in KINDS))

    def headline(self, results: Mapping[str, float]) -> str:
        """Return F1."""
        return "eval_f1" if "eval_f1" in results else "eval_loss"

    def planned_batch(self, settings: Settings, learner: Learner, *, rows: int) -> dict[str, Any]:
        """Return a batch of the longest windows."""
        import jax
        import jax.numpy as jnp

        field = jax.ShapeDtypeStruct((rows, self.longest(settings, learner)), jnp.int32)
        place = jax.ShapeDtypeStruct((rows,), jnp.int32)
        return {"input_ids": field, "attention_mask": field, **dict.fromkeys(ENDS, place)}

    def usage(self, adapter: bool) -> str:
        """Return a call that answers a question."""
        return '(question="Where?", context="It happened in Forres.")'


def _columns(settings: Settings, records: Any) -> tuple[str, str, str]:
    """Return the columns of the questions, of the contexts and of the answers."""
    asked = settings["text_column_names"] or ()
    if asked and len(asked) != 2:
        raise InputRefused(
            f"text_column_names: found {len(asked)}; expected two, the question's and the context's"
        )
    texts = chosen_columns(
        records.columns, asked, TEXTS, what="questions and contexts", flag="text_column_names"
    )
    named = settings["label_column_name"]
    (answers,) = chosen_columns(
        records.columns,
        () if named is None else (named,),
        ANSWERS,
        what="answers",
        flag="label_column_name",
    )
    return texts[0], texts[1], answers


def _table(records: Any, columns: tuple[str, str, str]) -> RowTable:
    """Return the rows, each answer found at its place in the context.

    Raises:
        InputRefused: answers that are none, or not there; the first ones are named.
    """
    questions, contexts, answers = (records.column(name) for name in columns)
    problems: list[str] = []
    texts, starts = [], []
    for row, (context, answer) in enumerate(zip(contexts, answers, strict=True)):
        pair = _answers(answer, context, records.place(row), problems)
        texts.append(pair[0])
        starts.append(pair[1])
    refuse_rows("data: answers that do not stand where they are said to:", problems)
    fields = {"question": questions, "context": contexts, "text": texts, "start": starts}
    return row_table(records, fields)


def _answers(
    answer: Any, context: Any, place: str, problems: list[str]
) -> tuple[list[str] | None, list[int] | None]:
    """Return the texts and places of a row's answers, and note what is wrong with them."""
    if answer is None or not isinstance(context, str):
        return None, None
    if isinstance(answer, list | tuple):  # one dictionary an answer
        parts = [part if isinstance(part, Mapping) else {} for part in answer]
        answer = {key: [part.get(key) for part in parts] for key in ("text", "answer_start")}
    if not isinstance(answer, Mapping) or "text" not in answer or "answer_start" not in answer:
        problems.append(f"{place}: {shown(answer, 60)}; expected text and answer_start")
        return [], []
    texts, starts = answer["text"], answer["answer_start"]
    texts, starts = (list(v) if isinstance(v, list | tuple) else [v] for v in (texts, starts))
    if len(texts) != len(starts):
        problems.append(f"{place}: {len(texts)} texts and {len(starts)} places")
        return [], []
    for text, start in zip(texts, starts, strict=True):
        whole = isinstance(text, str) and type(start) is int and start >= 0
        if not whole or not text or context[start : start + len(text)] != text:
            there = shown(context[start : start + 20], 40) if type(start) is int else "no place"
            problems.append(f"{place}: {shown(text, 40)} at {shown(start)}, where there is {there}")
    return texts, starts
