"""What kind of thing a run teaches: its data, its loss, its scores and what it says about them."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bridges.finetune.learner import Learner
from bridges.finetune.samples import Sample
from bridges.finetune.task_names import TASKS
from dew.cli.command import Settings
from dew.errors import UnknownName, nearest

TIMES = ("runtime", "samples_per_second")


class Task(ABC):
    """One kind of fine-tuning.

    Attributes:
        name: as `--task` spells it.
        pipeline: the pipeline's task that the finished model does.
        drops: whether dropout is drawn while it trains.
    """

    name: ClassVar[str]
    pipeline: ClassVar[str]
    drops: ClassVar[bool] = True

    def read(self, settings: Settings) -> Any:
        """Return what has to be known of the data before the model is loaded; None for nothing.

        Raises:
            InputRefused: data that cannot be read or does not fit the task.
        """
        return None

    def loading(self, examples: Any) -> dict[str, Any]:
        """Return the options that `bridges.load` takes for this task."""
        return {}

    def check_fit(self, bundle: Any, examples: Any) -> None:
        """Refuse data that a finished model was not made for.

        Raises:
            InputRefused: it has other labels.
        """
        del bundle, examples  # plain text fits every model that writes

    def side(self, examples: Any, *, held: bool) -> Any:
        """Return the held-out half of what `read` gave, or the other one."""
        return None

    @abstractmethod
    def learner(self, bundle: Any, *, remat: bool) -> Learner:
        """Return the model as it learns this task.

        Raises:
            InputRefused: a model that cannot.
        """

    @abstractmethod
    def data(
        self, settings: Settings, learner: Learner, examples: Any, *, rows: int, eval_rows: int
    ) -> Any:
        """Return the dataset, its report and its rows: a `TextDataset` or a `TableDataset`.

        Args:
            settings: of `dew finetune`.
            learner: whose tokenizer and limits the data must fit.
            examples: what `read` gave.
            rows: rows of a microbatch, over all devices.
            eval_rows: rows of a batch that is evaluated, over all devices.

        Raises:
            InputRefused: data that holds nothing to train on, or does not fit the model.
        """

    @abstractmethod
    def batches(self, rows: Any, *, batch: int) -> Any:
        """Return a pass over rows of the dataset, or what opens one for a data partition."""

    @abstractmethod
    def metrics(self, learner: Learner, examples: Any) -> Sequence[Any]:
        """Return what an evaluation scores.

        Args:
            learner: the model.
            examples: what the evaluated rows were made of; None for what needs no more than rows.
        """

    @abstractmethod
    def planned_batch(self, settings: Settings, learner: Learner, *, rows: int) -> dict[str, Any]:
        """Return the shapes of the widest batch, for `--dry-run`."""

    def results(self, scores: Mapping[str, float]) -> dict[str, float]:
        """Return an evaluation's scores by Hugging Face's names."""
        return {f"eval_{name.removeprefix('val/')}": value for name, value in scores.items()}

    def scored_as(self, name: str) -> str:
        """Return what the metric is called that gives the result `eval_<name>`."""
        return name

    @abstractmethod
    def headline(self, results: Mapping[str, float]) -> str:
        """Return which of the results is told first."""

    def samples(self, before: Any, after: Any, data: Any, *, count: int) -> Sequence[Sample]:
        """Return what two bundles make of a few rows, held out where there are any."""
        return ()

    def confusion(self, bundle: Any, data: Any) -> tuple[Sequence[str], Any] | None:
        """Return the classes' names, and how often each was taken for each other; or None."""
        return None

    @abstractmethod
    def row_tokens(self, rows: Any) -> Any:
        """Return how many tokens of each row a run counts, int64 [rows]; None counts none."""

    @abstractmethod
    def usage(self, adapter: bool) -> str:
        """Return how the finished model is called, lines of Python for its card."""


def task_named(name: str) -> Task:
    """Return a task.

    Raises:
        UnknownName: there is none of that name.
    """
    if name not in TASKS:
        raise UnknownName(
            f"task {name!a:.100} is not known{nearest(name, TASKS)} Known: {', '.join(TASKS)}."
        )
    module, _, attribute = TASKS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)()
