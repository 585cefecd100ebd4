"""What the tasks over tables share: two sides of rows, a report of them, and their passes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bridges.finetune.data import most_tokens
from bridges.finetune.learner import Learner
from bridges.finetune.table_data import TableReport, table_batches, table_dataset
from bridges.finetune.task import Task
from dew.cli.command import Settings
from dew.errors import InputRefused


@dataclass(frozen=True)
class Told:
    """What the report says of the training rows beside their counts.

    Args:
        targets: labels that the loss counts in one epoch.
        labels: how often each label stands there; empty where there is none to count.
        example: the first row as the model reads it.
        example_label: its label.
    """

    targets: int
    labels: Mapping[str, int] = field(default_factory=dict)
    example: str = ""
    example_label: str = ""


class TableTask(Task):
    """A task whose examples have the sides `train` and `validation`, tables with `select`."""

    def side(self, examples: Any, *, held: bool) -> Any:
        """Return the held-out rows, or the others."""
        return examples.validation if held else examples.train

    @abstractmethod
    def rows(self, settings: Settings, learner: Learner, table: Any) -> tuple[Any, int]:
        """Return a table's rows as the model reads them, and how many of them were cut.

        Raises:
            InputRefused: rows that cannot be learnt from.
        """

    @abstractmethod
    def told(self, learner: Learner, examples: Any, rows: Any) -> Told:
        """Return what the report says of the training rows."""

    def longest(self, settings: Settings, learner: Learner) -> int:
        """Return the most tokens of a row."""
        return most_tokens(settings, learner)

    def data(
        self, settings: Settings, learner: Learner, examples: Any, *, rows: int, eval_rows: int
    ) -> Any:
        """Return the `TableDataset` of the examples."""
        train, cut = self.rows(settings, learner, examples.train)
        held = examples.validation
        validation = None if held is None else self.rows(settings, learner, held)[0]
        told = self.told(learner, examples, train) if len(train) else Told(0)
        report = TableReport(
            files=examples.train.files,
            ignored=examples.train.ignored,
            records=examples.train.records,
            rows=len(train),
            validation_rows=0 if validation is None else len(validation),
            seq_len=self.longest(settings, learner),
            tokens=int(train.lengths.sum()),
            cut=cut,
            dropped=examples.train.dropped,
            targets=told.targets,
            labels=told.labels,
            example=told.example,
            example_label=told.example_label,
            fingerprint=train.fingerprint,
            unit=self.unit,
        )
        return table_dataset(
            train,
            validation,
            report,
            batch=rows,
            eval_batch=eval_rows,
            seed=settings["seed"],
            examples=held,
        )

    @property
    def unit(self) -> str:
        """What the lengths of rows are counted in."""
        return "tokens"

    def batches(self, rows: Any, *, batch: int) -> Any:
        """Return a pass over rows."""
        return table_batches(rows, batch=batch)

    def row_tokens(self, rows: Any) -> Any:
        """Return the tokens of each row."""
        return rows.lengths


def needed_tokenizer(learner: Learner) -> Any:
    """Return the model's tokenizer.

    Raises:
        InputRefused: it has none.
    """
    tokenizer = learner.bundle.tokenizer
    if tokenizer is None:
        raise InputRefused(
            "tokenizer: this model has none; put its tokenizer.json beside its weights"
        )
    return tokenizer
