"""`text-classification`: one label, several, or a number for a text or a pair of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bridges.finetune.class_names import check_names, class_names, class_number
from bridges.finetune.columns import chosen_columns
from bridges.finetune.encoded_rows import EncodedRows, Ragged
from bridges.finetune.examples import held_examples, records_of, sides
from bridges.finetune.learner import Learner
from bridges.finetune.outputs_learner import outputs_learner
from bridges.finetune.samples import Sample, confused, labelled_samples
from bridges.finetune.table_task import TableTask, Told, needed_tokenizer
from bridges.labels import MULTIPLE, REGRESSION, SINGLE, label_names
from dew.cli.command import Settings
from dew.errors import InputRefused
from dew.objectives.criteria import ClassLoss, IndependentLoss, NumberLoss
from dew.typing import Cutting

TEXTS = (
    ("text",),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence",),
    ("content",),
    ("review",),
    ("message",),
    ("question",),
)
LABELS = (
    ("label",),
    ("labels",),
    ("class",),
    ("category",),
    ("target",),
    ("sentiment",),
    ("score",),
)
CRITERIA = {SINGLE: ClassLoss, MULTIPLE: IndependentLoss, REGRESSION: NumberLoss}
CHUNK_TEXTS = 1024
SHOWN_CLASSES = 30

Text = str | tuple[str, str]


@dataclass(frozen=True)
class Labelled:
    """Texts with their labels, as a table holds them.

    Args:
        texts: one or a pair a row.
        labels: [N] class numbers or numbers, or float32 [N, C] of zeros and ones.
        dropped: rows that lacked one of them.
        records: rows of the table.
        files: how many were read.
        ignored: names that were not read.
    """

    texts: list[Text]
    labels: np.ndarray
    dropped: int = 0
    records: int = 0
    files: int = 0
    ignored: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.texts)

    def select(self, indices: Sequence[int] | np.ndarray) -> Labelled:
        """Return some of the rows."""
        texts = [self.texts[int(i)] for i in indices]
        return replace(self, texts=texts, labels=self.labels[np.asarray(indices, np.int64)])


@dataclass(frozen=True)
class ClassifiedTexts:
    """What the task knows before the model is loaded.

    Args:
        names: of the labels, in the order of the head's outputs.
        problem: one of transformers' `problem_type`s.
        train, validation: the rows; None where nothing is held out.
    """

    names: tuple[str, ...]
    problem: str
    train: Labelled
    validation: Labelled | None


class TextClassification(TableTask):
    """A head over a text's first token or mean; see `Task`."""

    name = "text-classification"
    pipeline = "text-classification"

    def read(self, settings: Settings) -> ClassifiedTexts:
        """Return the table's texts and labels, and what the labels are called.

        Raises:
            InputRefused: no such columns, labels of several kinds, one class alone.
        """
        train, validation = sides(settings)
        columns = _columns(settings, train)
        parts = [train] if validation is None else [train, validation]
        named = [part.labels(columns[-1]) for part in parts]
        values = [records_of(part, columns) for part in parts]
        problem = _problem([row[-1] for rows in values for row in rows])
        names = _names(settings, named[0], problem, [row[-1] for rows in values for row in rows])
        read = [
            _labelled(part, rows, names, problem) for part, rows in zip(parts, values, strict=True)
        ]
        held = read[1] if validation is not None else None
        if held is None and settings["eval_split"]:
            texts = [repr(text) for text in read[0].texts]
            kept, held = held_examples(read[0], texts, settings)
            read[0] = kept
        return ClassifiedTexts(names, problem, read[0], held)

    def loading(self, examples: ClassifiedTexts) -> dict[str, Any]:
        """Return the labels that the head is to have."""
        return {
            "task": self.pipeline,
            "labels": examples.names,
            "problem": examples.problem,
        }

    def check_fit(self, bundle: Any, examples: ClassifiedTexts) -> None:
        """Refuse data with other labels than the model's."""
        check_names(bundle, examples.names)

    def learner(self, bundle: Any, *, remat: bool) -> Learner:
        """Return the model with the loss of its kind of labels."""
        problem = bundle.config.get("problem_type") or SINGLE
        return outputs_learner(bundle, CRITERIA[problem](), remat=remat)

    def rows(self, settings: Settings, learner: Learner, table: Labelled) -> tuple[Any, int]:
        """Return the texts' tokens with their labels, and how many were cut."""
        return encoded_texts(learner, table, self.longest(settings, learner))

    def told(self, learner: Learner, examples: ClassifiedTexts, rows: EncodedRows) -> Told:
        """Return how often each label stands there, and the first text."""
        train = examples.train
        counts = {}
        if examples.problem == SINGLE:
            found = Counter(train.labels.tolist())
            counts = {name: found[number] for number, name in enumerate(examples.names)}
        elif examples.problem == MULTIPLE:
            sums = train.labels.sum(axis=0)
            counts = {name: int(sums[number]) for number, name in enumerate(examples.names)}
        first = rows.ids.values[: rows.ids.offsets[1]].tolist()
        return Told(
            targets=int(train.labels.size),
            labels=counts,
            example=learner.bundle.tokenizer.decode(first, skip_special_tokens=False),
            example_label=_told(train.labels[0], examples),
        )

    def metrics(self, learner: Learner, examples: Any) -> Sequence[Any]:
        """Return the loss and the scores of the kind of labels."""
        from dew.evaluation.class_scores import ClassScore
        from dew.evaluation.correlation import Correlation
        from dew.evaluation.label_scores import LabelScore
        from dew.evaluation.mean_loss import MeanLoss

        problem = learner.bundle.config.get("problem_type")
        if problem == REGRESSION:
            return (MeanLoss(), Correlation("pearson"), Correlation("spearman"))
        if problem == MULTIPLE:
            return (MeanLoss(), *map(LabelScore, ("accuracy", "f1_micro", "f1_macro")))
        two = len(label_names(learner.bundle.config)) == 2
        kinds = ("f1", "precision", "recall") if two else ("f1_macro", "f1_weighted")
        return (MeanLoss(), *map(ClassScore, ("accuracy", *kinds)))

    def headline(self, results: Any) -> str:
        """Return the accuracy, or the correlation of numbers."""
        return "eval_accuracy" if "eval_accuracy" in results else "eval_spearman"

    def planned_batch(self, settings: Settings, learner: Learner, *, rows: int) -> dict[str, Any]:
        """Return a batch of the longest rows."""
        import jax
        import jax.numpy as jnp

        longest = self.longest(settings, learner)
        field = jax.ShapeDtypeStruct((rows, longest), jnp.int32)
        labels = jax.ShapeDtypeStruct((rows,), jnp.int32)
        return {"input_ids": field, "attention_mask": field, "labels": labels}

    def samples(self, before: Any, after: Any, data: Any, *, count: int) -> Sequence[Sample]:
        """Return how both models label a few rows, held out where there are any."""
        if (after.config.get("problem_type") or SINGLE) != SINGLE:
            return ()
        rows = data.rows if data.eval_rows is None else data.eval_rows
        return labelled_samples(before, after, rows, label_names(after.config), count=count)

    def confusion(self, bundle: Any, data: Any) -> tuple[Sequence[str], Any] | None:
        """Return how often each class was taken for each other among the held-out rows."""
        names = label_names(bundle.config)
        single = (bundle.config.get("problem_type") or SINGLE) == SINGLE
        if not single or data.eval_rows is None or len(names) > SHOWN_CLASSES:
            return None
        return names, confused(bundle, data.eval_rows, len(names))

    def usage(self, adapter: bool) -> str:
        """Return a call that labels a text."""
        return '("Is this worth reading?")'


def encoded_texts(learner: Learner, table: Labelled, longest: int) -> tuple[EncodedRows, int]:
    """Return a table's rows as a model reads them, and how many were cut.

    Args:
        learner: whose tokenizer and inputs.
        table: the texts and labels.
        longest: the most tokens of a row.

    Raises:
        InputRefused: no tokenizer.
    """
    tokenizer = needed_tokenizer(learner)
    ids: list[list[int]] = []
    kinds: list[list[int]] = []
    cut = 0
    for start in range(0, len(table), CHUNK_TEXTS):
        found = tokenizer.encodings(table.texts[start : start + CHUNK_TEXTS], Cutting(longest))
        ids += [encoding.ids for encoding in found]
        kinds += [encoding.type_ids for encoding in found]
        cut += sum(bool(encoding.overflowing) for encoding in found)
    padding = tokenizer.pad_token_id or 0
    beside = {}
    if any(map(any, kinds)) and "token_type_ids" in learner.input_names:
        beside["token_type_ids"] = Ragged.of(kinds)
    rows = EncodedRows(
        Ragged.of(ids, padding=padding), beside, {"labels": table.labels}, limit=longest
    )
    return rows, cut


def _columns(settings: Settings, records: Any) -> tuple[str, ...]:
    """Return the one or two columns of text, and that of the label."""
    asked = settings["text_column_names"] or ()
    if not asked and settings.given("dataset_text_field"):
        asked = (settings["dataset_text_field"],)
    if len(asked) > 2:
        raise InputRefused(f"text_column_names: found {len(asked)}; expected one, or two of a pair")
    texts = chosen_columns(records.columns, asked, TEXTS, what="text", flag="text_column_names")
    label = settings["label_column_name"]
    (named,) = chosen_columns(
        records.columns,
        () if label is None else (label,),
        LABELS,
        what="labels",
        flag="label_column_name",
    )
    return (*texts, named)


def _problem(labels: list[Any]) -> str:
    """Return what kind the labels are of."""
    given = [label for label in labels if label is not None]
    if not given:
        raise InputRefused("data: no row has a label")
    if all(isinstance(label, list | tuple) for label in given):
        return MULTIPLE
    kinds = {type(label) for label in given}
    if kinds <= {float, int} and float in kinds:
        return REGRESSION
    if kinds <= {str} or kinds <= {int} or kinds <= {bool}:
        return SINGLE
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InputRefused(
        f"data: labels of several kinds ({names}); expected texts, whole numbers, numbers, or "
        "lists of texts for several labels a row"
    )


def _names(
    settings: Settings, named: tuple[str, ...] | None, problem: str, labels: list[Any]
) -> tuple[str, ...]:
    """Return the labels' names: the source's, the model's own where they are the same, or sorted.

    Raises:
        InputRefused: one class alone, a number that is none, more classes than make sense.
    """
    if problem == REGRESSION:
        return ("LABEL_0",)
    if problem == MULTIPLE:
        labels = [part for label in labels if label is not None for part in label]
    given = {label for label in labels if label is not None}
    return class_names(settings, named, given, fewest=2 if problem == SINGLE else 1)


def _labelled(
    records: Any, rows: list[tuple[Any, ...]], names: tuple[str, ...], problem: str
) -> Labelled:
    """Return the rows that have text and label."""
    texts: list[Text] = []
    labels: list[Any] = []
    for *parts, label in rows:
        if label is None or any(not isinstance(part, str) or not part for part in parts[:1]):
            continue
        first, *second = (part if isinstance(part, str) else "" for part in parts)
        texts.append((first, second[0]) if second else first)
        if problem == MULTIPLE:
            row = np.zeros(len(names), np.float32)
            row[[class_number(part, names) for part in label]] = 1
            labels.append(row)
        else:
            regress = problem == REGRESSION
            labels.append(float(label) if regress else class_number(label, names))
    kind = np.int32 if problem == SINGLE else np.float32
    shape = (0, len(names)) if problem == MULTIPLE else (0,)
    values = np.array(labels, kind) if labels else np.zeros(shape, kind)
    return Labelled(
        texts,
        values,
        dropped=len(rows) - len(texts),
        records=len(rows),
        files=len(records.files),
        ignored=tuple(records.ignored),
    )


def _told(label: Any, examples: ClassifiedTexts) -> str:
    if examples.problem == SINGLE:
        return examples.names[int(label)]
    if examples.problem == MULTIPLE:
        return ", ".join(n for n, on in zip(examples.names, label, strict=True) if on) or "none"
    return f"{float(label):g}"
