"""`token-classification`: a label for each word, as entities and parts of speech have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from bridges.finetune.class_names import check_names, class_names, class_number
from bridges.finetune.columns import chosen_columns
from bridges.finetune.encoded_rows import EncodedRows, Ragged
from bridges.finetune.examples import sides
from bridges.finetune.learner import Learner
from bridges.finetune.outputs_learner import outputs_learner
from bridges.finetune.row_table import Examples, RowTable, refuse_rows, row_table, split_sides
from bridges.finetune.table_task import TableTask, Told, needed_tokenizer
from bridges.finetune.word_pieces import word_pieces
from bridges.labels import label_names
from dew.cli.command import Settings
from dew.objectives.criteria import IGNORED, ClassLoss

WORDS = (("tokens",), ("words",), ("text",), ("sentence",))
TAGS = (("ner_tags",), ("tags",), ("labels",), ("pos_tags",), ("chunk_tags",), ("label",), ("ner",))
SCORES = ("precision", "recall", "f1", "accuracy")


class TokenClassification(TableTask):
    """A head over every token, learnt at the first piece of each word; see `Task`."""

    name = "token-classification"
    pipeline = "token-classification"

    def read(self, settings: Settings) -> Examples:
        """Return the table's words and tags, and what the tags are called.

        Raises:
            InputRefused: no such columns, rows with more tags than words, one class alone.
        """
        train, validation = sides(settings)
        columns = tag_columns(settings, train)
        read = [_table(part, columns) for part in (train, validation) if part is not None]
        tags = (tag for table in read for row in table["tags"] for tag in row)
        names = class_names(settings, train.labels(columns[1]), tags)
        for table in read:
            for row in table["tags"]:
                row[:] = [class_number(tag, names) for tag in row]
        held = read[1] if validation is not None else None
        return Examples(*split_sides(read[0], held, settings), names=names)

    def loading(self, examples: Examples) -> dict[str, Any]:
        """Return the labels that the head is to have."""
        return {"task": self.pipeline, "labels": examples.names, "problem": None}

    def check_fit(self, bundle: Any, examples: Examples) -> None:
        """Refuse data with other labels than the model's."""
        check_names(bundle, examples.names)

    def learner(self, bundle: Any, *, remat: bool) -> Learner:
        """Return the model with the mean cross entropy of the words."""
        return outputs_learner(bundle, ClassLoss(), remat=remat)

    def rows(self, settings: Settings, learner: Learner, table: RowTable) -> tuple[Any, int]:
        """Return the rows' pieces and labels, and how many rows lost words to the limit."""
        return tagged_rows(
            learner,
            table,
            longest=self.longest(settings, learner),
            every_piece=settings["label_all_tokens"],
        )

    def told(self, learner: Learner, examples: Examples, rows: EncodedRows) -> Told:
        """Return how often each tag is learnt, and the first row's words with theirs."""
        labels = rows.beside["labels"].values
        counts = Counter(labels[labels >= 0].tolist())
        names, train = examples.names, examples.train
        first = zip(train["words"][0], train["tags"][0], strict=True)
        return Told(
            targets=sum(counts.values()),
            labels={name: counts[number] for number, name in enumerate(names)},
            example=" ".join(train["words"][0]),
            example_label=" ".join(f"{word}/{names[tag]}" for word, tag in first)[:300],
        )

    def metrics(self, learner: Learner, examples: Any) -> Sequence[Any]:
        """Return the loss, and precision, recall, F1 and accuracy as seqeval counts them."""
        from dew.evaluation.entity_scores import EntityScore
        from dew.evaluation.mean_loss import MeanLoss

        names = label_names(learner.bundle.config)
        return (MeanLoss(), *(EntityScore(kind, names) for kind in SCORES))

    def headline(self, results: Any) -> str:
        """Return F1."""
        return "eval_f1"

    def planned_batch(self, settings: Settings, learner: Learner, *, rows: int) -> dict[str, Any]:
        """Return a batch of the longest rows."""
        import jax
        import jax.numpy as jnp

        field = jax.ShapeDtypeStruct((rows, self.longest(settings, learner)), jnp.int32)
        return {"input_ids": field, "attention_mask": field, "labels": field}

    def usage(self, adapter: bool) -> str:
        """Return a call that tags a text."""
        return '("Ada Lovelace lived in London.")'


def tag_columns(settings: Settings, records: Any) -> tuple[str, str]:
    """Return the columns of the words and of their tags.

    Raises:
        InputRefused: a name that the table lacks, or none of the usual ones.
    """
    (words,) = chosen_columns(
        records.columns,
        tuple(settings["text_column_names"] or ())[:1],
        WORDS,
        what="lists of words",
        flag="text_column_names",
    )
    named = settings["label_column_name"]
    (tags,) = chosen_columns(
        records.columns,
        () if named is None else (named,),
        TAGS,
        what="lists of tags",
        flag="label_column_name",
    )
    return words, tags


def _table(records: Any, columns: tuple[str, str]) -> RowTable:
    """Return the rows, their words and tags checked.

    Raises:
        InputRefused: rows that are no lists, or of unequal length; the first ones are named.
    """
    words, tags = (records.column(name) for name in columns)
    problems = []
    for place, (row, labels) in enumerate(zip(words, tags, strict=True)):
        if row is None or labels is None:
            continue
        if not isinstance(row, list | tuple) or not isinstance(labels, list | tuple):
            problems.append(f"{records.place(place)}: {columns[0]} or {columns[1]} is no list")
        elif len(row) != len(labels):
            problems.append(f"{records.place(place)}: {len(row)} words and {len(labels)} tags")
        elif not all(isinstance(word, str) for word in row) or any(t is None for t in labels):
            problems.append(f"{records.place(place)}: a word that is no text, or one without a tag")
    refuse_rows("data: rows whose words and tags do not go together:", problems)
    kept = [list(row) if row else None for row in words]
    return row_table(records, {"words": kept, "tags": [row and list(row) for row in tags]})


def tagged_rows(
    learner: Learner, table: RowTable, *, longest: int, every_piece: bool
) -> tuple[EncodedRows, int]:
    """Return words as pieces with a label at the first piece of each word.

    Args:
        learner: whose tokenizer and inputs.
        table: with `words`, and `tags` as numbers.
        longest: the most tokens of a row.
        every_piece: whether a word's other pieces have its label too, a beginning's the inside's.

    Returns:
        The rows, whose `labels` are `IGNORED` where nothing is learnt, and how many were cut.

    Source: tokenize_and_align_labels of transformers' examples/pytorch/token-classification.
    """
    tokenizer = needed_tokenizer(learner)
    inside = _insides(label_names(learner.bundle.config))
    encodings = word_pieces(tokenizer, table["words"], longest)
    labels = []
    for encoding, tags in zip(encodings, table["tags"], strict=True):
        row, before = [], None
        for word in encoding.word_ids:
            if word is None:
                row.append(IGNORED)
            elif word != before:
                row.append(tags[word])
            else:
                row.append(inside[tags[word]] if every_piece else IGNORED)
            before = word
        labels.append(row)
    beside = {"labels": Ragged.of(labels, padding=IGNORED)}
    if "token_type_ids" in learner.input_names and any(any(e.type_ids) for e in encodings):
        beside["token_type_ids"] = Ragged.of([encoding.type_ids for encoding in encodings])
    ids = Ragged.of([e.ids for e in encodings], padding=tokenizer.pad_token_id or 0)
    rows = EncodedRows(ids, beside, limit=longest)
    return rows, sum(bool(encoding.overflowing) for encoding in encodings)


def _insides(names: Sequence[str]) -> list[int]:
    """Return for each label that of the inside of what it begins: itself where there is none."""
    found = []
    for number, name in enumerate(names):
        other = "I-" + name[2:] if name.startswith("B-") else name
        found.append(names.index(other) if other in names else number)
    return found
