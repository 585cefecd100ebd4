"""`sentence-embedding`: vectors of texts, learnt from pairs, triplets or pairs with a score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bridges.finetune.columns import chosen_columns
from bridges.finetune.data import chosen
from bridges.finetune.encoded_rows import EncodedRows, Ragged
from bridges.finetune.examples import sides
from bridges.finetune.learner import Learner
from bridges.finetune.outputs_learner import Grouping, sentences_learner
from bridges.finetune.row_table import Examples, RowTable, refuse_rows, row_table, split_sides
from bridges.finetune.table_task import TableTask, Told, needed_tokenizer
from bridges.finetune.text_group_rows import TextGroupRows
from dew.cli.command import Settings
from dew.errors import InputRefused, shown
from dew.nn.heads import SentencePooling
from dew.typing import Cutting

TEXTS = (
    ("anchor", "positive", "negative"),
    ("anchor", "positive"),
    ("query", "positive", "negative"),
    ("query", "positive"),
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("sentence_1", "sentence_2"),
    ("text1", "text2"),
    ("premise", "hypothesis"),
    ("question", "answer"),
    ("query", "document"),
    ("query", "answer"),
)
SCORES = ("score", "similarity", "similarity_score", "label", "labels")
MOST_TEXTS = 8
CHUNK_TEXTS = 1024
RANKING, COSENT = "ranking", "cosent"
USUAL_POOLING = SentencePooling(("mean",))


class SentenceEmbedding(TableTask):
    """An encoder whose pooled states tell how alike texts are; see `Task`."""

    name = "sentence-embedding"
    pipeline = "feature-extraction"
    kind: str = RANKING
    texts: int = 2

    def read(self, settings: Settings) -> Examples:
        """Return the table's texts, and their scores where it has some.

        Raises:
            InputRefused: no such columns, values that are no texts or numbers.
        """
        train, validation = sides(settings)
        columns, score = _columns(settings, train)
        self.texts, self.kind = len(columns), RANKING if score is None else COSENT
        parts = [part for part in (train, validation) if part is not None]
        tables = [_table(part, columns, score) for part in parts]
        if score is not None and len(set(tables[0]["score"])) < 2:
            raise InputRefused(
                f"data: the scores of {len(tables[0])} pairs are all the same; of equal ones "
                "nothing can be learnt"
            )
        held = tables[1] if validation is not None else None
        found = split_sides(tables[0], held, settings)
        for table in found:
            if table is not None and len(table) == 1:
                raise InputRefused("data: one row alone; what is learnt is told from other rows")
        return Examples(*found, kind=self.kind)

    def loading(self, examples: Examples) -> dict[str, Any]:
        """Return the task, so that the model has no head."""
        return {"task": self.pipeline}

    def learner(self, bundle: Any, *, remat: bool) -> Learner:
        """Return the model with its loss, and with its pooling written into what is exported."""
        pooling = getattr(bundle.model, "sentence", None)
        if pooling is None:
            pooling = USUAL_POOLING
            if hasattr(bundle.model, "sentence"):
                bundle = bundle.replace(model=bundle.model.clone(sentence=pooling))
        return sentences_learner(bundle, Grouping(self.texts, self.kind, pooling), remat=remat)

    def longest(self, settings: Settings, learner: Learner) -> int:
        """Return the most tokens of a text: no more than the checkpoint's pooling looks at."""
        own = learner.grouping.pooling.max_tokens  # pyright: ignore[reportAttributeAccessIssue]
        found = super().longest(settings, learner)
        return found if own is None or chosen(settings, "max_length") else min(found, own)

    def rows(self, settings: Settings, learner: Learner, table: RowTable) -> tuple[Any, int]:
        """Return the texts' tokens, and how many rows lost some to the limit."""
        longest = self.longest(settings, learner)
        parts, cut = [], np.zeros(len(table), bool)
        for number in range(self.texts):
            part, shorter = _encoded(learner, table[f"text_{number}"], longest)
            parts.append(part)
            cut |= shorter
        whole = {}
        if self.kind != RANKING:
            whole["labels"] = np.array(table["score"], np.float32)
        else:
            # Which of a row's further texts is the one that belongs: the first of them.
            whole["nearest"] = np.zeros(len(table), np.int32)
        return TextGroupRows(parts, whole), int(cut.sum())

    def told(self, learner: Learner, examples: Examples, rows: TextGroupRows) -> Told:
        """Return the first row, and how it is learnt."""
        train = examples.train
        first = " | ".join(train[f"text_{number}"][0] for number in range(self.texts))
        scored = self.kind != RANKING
        label = f"{train['score'][0]:g}" if scored else "the second is to be found by the first"
        return Told(targets=len(rows), example=first, example_label=label)

    def metrics(self, learner: Learner, examples: Any) -> Sequence[Any]:
        """Return the loss; Spearman's and Pearson's correlation with scores, or the accuracy.

        The accuracy of triplets is how often the second text is nearer than the third.
        """
        from dew.evaluation.class_scores import ClassScore
        from dew.evaluation.correlation import Correlation
        from dew.evaluation.mean_loss import MeanLoss

        if self.kind != RANKING:
            kinds = ("spearman", "pearson")
            return (MeanLoss(), *(Correlation(kind, output="cosine") for kind in kinds))
        return (MeanLoss(), ClassScore(labels="nearest")) if self.texts > 2 else (MeanLoss(),)

    def headline(self, results: Mapping[str, float]) -> str:
        """Return the correlation or the accuracy where there is one, else the loss."""
        return next((n for n in ("eval_spearman", "eval_accuracy") if n in results), "eval_loss")

    def planned_batch(self, settings: Settings, learner: Learner, *, rows: int) -> dict[str, Any]:
        """Return a batch of the longest texts."""
        import jax
        import jax.numpy as jnp

        field = jax.ShapeDtypeStruct((rows, self.longest(settings, learner)), jnp.int32)
        names = ("input_ids", "attention_mask")
        found = {f"{name}_{n}": field for n in range(self.texts) for name in names}
        if self.kind != RANKING:
            found["labels"] = jax.ShapeDtypeStruct((rows,), jnp.float32)
        return found

    def usage(self, adapter: bool) -> str:
        """Return a call that makes a text's states."""
        return '("Is this like that?")'


def _encoded(learner: Learner, texts: Sequence[str], longest: int) -> tuple[EncodedRows, Any]:
    """Return the tokens of one text a row, and which were cut."""
    tokenizer = needed_tokenizer(learner)
    ids: list[list[int]] = []
    cut = np.zeros(len(texts), bool)
    for start in range(0, len(texts), CHUNK_TEXTS):
        for encoding in tokenizer.encodings(
            list(texts[start : start + CHUNK_TEXTS]), Cutting(longest)
        ):
            cut[len(ids)] = bool(encoding.overflowing)
            ids.append(encoding.ids)
    padding = tokenizer.pad_token_id or 0
    return EncodedRows(Ragged.of(ids, padding=padding), limit=longest), cut


def _columns(settings: Settings, records: Any) -> tuple[tuple[str, ...], str | None]:
    """Return the columns of the texts, and that of their scores or None."""
    asked = tuple(settings["text_column_names"] or ())
    if asked and not 2 <= len(asked) <= MOST_TEXTS:
        raise InputRefused(
            f"text_column_names: found {len(asked)}; expected two texts that belong together, and "
            f"perhaps others that do not, {MOST_TEXTS} at most"
        )
    columns = chosen_columns(
        records.columns, asked, TEXTS, what="texts that belong together", flag="text_column_names"
    )
    named = settings["label_column_name"]
    if named is not None:
        chosen_columns(records.columns, (named,), (), what="scores", flag="label_column_name")
        return columns, named
    lower = {name.lower(): name for name in records.columns}
    score = next((lower[name] for name in SCORES if name in lower), None)
    return columns, score if len(columns) == 2 else None


def _table(records: Any, columns: Sequence[str], score: str | None) -> RowTable:
    """Return the rows that have all texts, and their score where there is one.

    Raises:
        InputRefused: values that are no texts or numbers; the first ones are named.
    """
    fields: dict[str, list[Any]] = {}
    problems = []
    for number, name in enumerate(columns):
        values = records.column(name)
        fields[f"text_{number}"] = [value or None for value in values]
        problems += [
            f"{records.place(place)}: {shown(name)} is a {type(value).__name__}"
            for place, value in enumerate(values)
            if value is not None and not isinstance(value, str)
        ]
    if score is not None:
        values = records.column(score)
        problems += [
            f"{records.place(place)}: the score {shown(value, 40)} is no number"
            for place, value in enumerate(values)
            if value is not None and type(value) not in (int, float)
        ]
        fields["score"] = values
    refuse_rows("data: values that are no texts or scores:", problems)
    table = row_table(records, fields)
    if not len(table):
        raise InputRefused(f"data: no row has all of {', '.join(map(shown, columns))}")
    return table
