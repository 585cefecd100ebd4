"""`dpo`: of two answers to a prompt, the chosen one rather than the rejected one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from bridges.finetune.chat_tokens import pair_tokens
from bridges.finetune.encoded_rows import Ragged
from bridges.finetune.end_tokens import with_template_end
from bridges.finetune.examples import held_examples, sides
from bridges.finetune.learner import Learner, NativeText, learner_of
from bridges.finetune.table_task import TableTask, Told, needed_tokenizer
from dew.cli.command import Settings
from dew.errors import InputRefused, listed, shown

SIDES = ("chosen", "rejected")
BETA = 0.1
ROUNDED = 8
"""Rows are padded to a multiple of so many tokens."""


@dataclass(frozen=True)
class Preferences:
    """Rows of a table: a prompt with two answers, texts or messages.

    Args:
        rows: prompt (None where the answers hold it), chosen and rejected.
        places: where each stands, for messages.
        files: how many were read.
        ignored: names that were not read.
        records: rows of the table.
        dropped: rows that were left out; none.
    """

    rows: list[tuple[Any, Any, Any]]
    places: list[str]
    files: int = 0
    ignored: tuple[str, ...] = ()
    records: int = 0
    dropped: int = 0

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.rows)

    def select(self, indices: Any) -> Preferences:
        """Return some of them."""
        chosen = [int(i) for i in indices]
        places = [self.places[i] for i in chosen]
        rows = [self.rows[i] for i in chosen]
        return Preferences(rows, places, self.files, self.ignored, self.records)


@dataclass(frozen=True)
class Sides:
    """What is trained on, and what is held out."""

    train: Preferences
    validation: Preferences | None


@dataclass(frozen=True, eq=False)
class PairRows:
    """Two sequences a row, each with the part that is its answer; see `dew.data.Rows`.

    Args:
        fields: `chosen`, `chosen_completion`, `rejected` and `rejected_completion`.
        length: what all are padded to.
    """

    fields: Mapping[str, Ragged]
    length: int

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.fields["chosen"].offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each pair, int64 [N]."""
        return self.fields["chosen"].lengths + self.fields["rejected"].lengths

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the fields, in hexadecimal."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        from dew.data.rows import hashed

        parts = {name: ragged.values for name, ragged in self.fields.items()}
        return hashed(parts | {f"{n} offsets": r.offsets for n, r in self.fields.items()})

    def width(self, indices: np.ndarray) -> int:
        """Return the length that all rows are padded to."""
        return self.length

    def take(self, indices: np.ndarray, width: int | None = None) -> dict[str, np.ndarray]:
        """Return the fields of the rows at `indices`, each int32 [B, length].

        Raises:
            InputRefused: an index outside 0 to N - 1.
        """
        from dew.data.rows import check_indices

        check_indices(indices, len(self))
        return {n: ragged.padded(indices, self.length) for n, ragged in self.fields.items()}


@dataclass(frozen=True)
class NativePairs(NativeText):
    """A model of a native family that is taught by pairs; see `Learner`.

    Args:
        options: of `DPOObjective`.
    """

    options: Mapping[str, Any] = field(default_factory=dict)

    def objective(self, seq_len: int) -> Any:
        """Return direct preference optimisation against the model that the run starts from."""
        from dew.objectives.preference import DPOObjective

        return DPOObjective(self._model(), seq_len, **self.options)

    def adapter_objective(self, seq_len: int, asked: Any) -> Any:
        """Refuse."""
        raise InputRefused("dpo trains whole models so far; leave out --use_peft")


class DPO(TableTask):
    """Direct preference optimisation, Rafailov et al. 2023, arXiv:2305.18290; see `Task`."""

    name = "dpo"
    pipeline = "text-generation"
    drops = False  # as trl has it

    def __init__(self) -> None:
        self._options: dict[str, Any] = {}
        self._longest = 0

    def read(self, settings: Settings) -> Sides:
        """Return the pairs that are trained on, and those held out."""
        beta = BETA if settings["beta"] is None else settings["beta"]
        self._options = {"beta": beta, "label_smoothing": settings["label_smoothing"]}
        train, validation = (None if part is None else _read(part) for part in sides(settings))
        if train is None or not len(train):
            raise InputRefused("data: no pair in it; expected at least one")
        if validation is None and settings["eval_split"]:
            keys = [repr(row) for row in train.rows]
            train, validation = held_examples(train, keys, settings)
        return Sides(train, validation)

    def learner(self, bundle: Any, *, remat: bool) -> Learner:
        """Return the model as pairs teach it.

        Raises:
            InputRefused: a model that writes no text, or a traced one.
        """
        found = learner_of(bundle, remat=remat)
        if not isinstance(found, NativeText):
            raise InputRefused(f"dpo teaches native families; {bundle.family} is traced")
        return NativePairs(with_template_end(bundle), remat, self._options)

    def rows(self, settings: Settings, learner: Learner, table: Any) -> tuple[PairRows, int]:
        """Return a table's pairs as token ids."""
        processor, longest = needed_tokenizer(learner), self.longest(settings, learner)
        found: dict[str, list[list[int]]] = {}
        cut = 0
        for row, place in zip(table.rows, table.places, strict=True):
            for side, (ids, weights) in zip(SIDES, _encoded(processor, row, place), strict=True):
                cut += len(ids) > longest
                found.setdefault(side, []).append(ids[:longest])
                kept = [int(weight) for weight in weights[:longest]]
                found.setdefault(f"{side}_completion", []).append(kept)
        fields = {name: Ragged.of(rows) for name, rows in found.items()}
        if table.rows and not any(fields[f"{side}_completion"].values.any() for side in SIDES):
            raise InputRefused(
                f"data: no trainable token: every prompt fills its row of {longest} tokens and no "
                "answer is left. Give a larger --max_length or shorter prompts"
            )
        most = max((int(fields[side].lengths.max()) for side in SIDES), default=2)
        self._longest = max(self._longest, min(longest, -(-most // ROUNDED) * ROUNDED))
        return PairRows(fields, self._longest), cut

    def data(
        self, settings: Settings, learner: Learner, examples: Any, *, rows: int, eval_rows: int
    ) -> Any:
        """Return the `TableDataset` of the pairs; its report's `seq_len` is that of its rows."""
        from dataclasses import replace

        data = super().data(settings, learner, examples, rows=rows, eval_rows=eval_rows)
        return replace(data, report=replace(data.report, seq_len=self._longest))

    def told(self, learner: Learner, examples: Any, rows: Any) -> Told:
        """Return the first pair, and how many there are."""
        tokenizer = needed_tokenizer(learner)
        first = {side: rows.fields[side] for side in SIDES}
        texts = [
            tokenizer.decode(part.values[: part.offsets[1]].tolist(), skip_special_tokens=False)
            for part in first.values()
        ]
        return Told(
            targets=len(rows), example=texts[0], example_label=f"not {shown(texts[1], 200)}"
        )

    def metrics(self, learner: Learner, examples: Any) -> Sequence[Any]:
        """Return the loss, and how often the chosen answer's reward is the larger."""
        from dew import metrics
        from dew.evaluation.mean_loss import MeanLoss

        return (MeanLoss(), metrics.accuracy(name="rewards/accuracies"))

    def headline(self, results: Mapping[str, float]) -> str:
        """Return the accuracy of the rewards."""
        return "eval_rewards/accuracies"

    def planned_batch(self, settings: Settings, learner: Learner, *, rows: int) -> dict[str, Any]:
        """Return pairs of full rows."""
        import jax
        import jax.numpy as jnp

        shape = jax.ShapeDtypeStruct((rows, self.longest(settings, learner)), jnp.int32)
        return {f"{side}{part}": shape for side in SIDES for part in ("", "_completion")}

    def usage(self, adapter: bool) -> str:
        """Return a call that continues a text."""
        return '("Once upon a time")'


def _read(records: Any) -> Preferences:
    """Return the pairs of a table.

    Raises:
        InputRefused: a table without the columns, or rows without an answer.
    """
    missing = [side for side in SIDES if side not in records.columns]
    if missing:
        there = ", ".join(shown(name, 40) for name in list(records.columns)[:12])
        raise InputRefused(
            f"data: no column {' nor '.join(missing)}; there is {there}. Expected prompt, chosen "
            "and rejected, or chosen and rejected with the prompt in both."
        )
    rows, places, problems = [], [], []
    for number in range(len(records)):
        row = records[number]
        place = records.place(number)
        found = (row.get("prompt"), row["chosen"], row["rejected"])
        if not found[1] or not found[2]:
            problems.append(f"{place}: an empty answer")
        rows.append(found)
        places.append(place)
    if problems:
        raise InputRefused(listed("data: pairs that cannot be used:", problems))
    return Preferences(rows, places, len(records.files), tuple(records.ignored), len(rows))


def _encoded(processor: Any, row: tuple[Any, Any, Any], place: str) -> list[Any]:
    """Return ids and weights of the chosen answer and of the rejected one."""
    prompt, *answers = row
    if all(isinstance(answer, str) for answer in answers):
        given = prompt if isinstance(prompt, str) else ""
        if prompt is None:
            given = _common(*answers)
            answers = [answer[len(given) :] for answer in answers]
        return [pair_tokens(processor, given, answer, completion_only=True) for answer in answers]
    if prompt is None:
        shared = 0
        while shared < min(map(len, answers)) and answers[0][shared] == answers[1][shared]:
            shared += 1
        prompt, answers = answers[0][:shared], [answer[shared:] for answer in answers]
    if not isinstance(prompt, list) or not all(isinstance(answer, list) for answer in answers):
        raise InputRefused(
            f"{place}: prompt and answers are of different kinds; expected texts or messages"
        )
    return [_answered(processor, prompt, answer, place) for answer in answers]


def _answered(processor: Any, prompt: list, answer: list, place: str) -> tuple[list, list]:
    """Return a conversation's ids, and 1 where the answer stands."""
    asked = processor.apply_chat_template(prompt, add_generation_prompt=True)
    told = processor.apply_chat_template([*prompt, *answer])
    if not told.startswith(asked):
        raise InputRefused(
            f"{place}: the chat template writes the prompt otherwise once the answer is there"
        )
    ids, offsets = processor.encode_with_offsets(told)
    return ids, [float(first >= len(asked)) for first, _ in offsets]


def _common(first: str, second: str) -> str:
    """Return the text that both begin with."""
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return first[:length]
