"""`chat`: conversations through the checkpoint's own template, the answers as targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bridges.finetune.chat_tokens import chat_tokens, pair_tokens
from bridges.finetune.conversations import MESSAGES, Messages, conversation, conversation_kind
from bridges.finetune.data import laid_apart, row_length
from bridges.finetune.end_tokens import with_template_end
from bridges.finetune.examples import held_examples, sides
from bridges.finetune.learner import Learner
from bridges.finetune.table_task import needed_tokenizer
from bridges.finetune.tasks.causal_lm import CausalLM
from dew.cli.command import Settings
from dew.errors import InputRefused

Turns = Messages | tuple[str, str]


@dataclass(frozen=True)
class Conversations:
    """Conversations of a table.

    Args:
        turns: messages, or prompt and completion.
        places: where each stands, for messages.
        files: how many were read.
        ignored: names that were not read.
    """

    turns: list[Turns]
    places: list[str]
    files: int = 0
    ignored: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.turns)

    def select(self, indices: Any) -> Conversations:
        """Return some of them."""
        chosen = [int(i) for i in indices]
        places = [self.places[i] for i in chosen]
        return Conversations([self.turns[i] for i in chosen], places, self.files, self.ignored)


class Chat(CausalLM):
    """Next-token prediction of answers; see `Task`."""

    name = "chat"

    def learner(self, bundle: Any, *, remat: bool) -> Learner:
        """Return the model as it writes answers, which end as the template ends them."""
        return super().learner(with_template_end(bundle), remat=remat)

    def read(self, settings: Settings) -> Any:
        """Return the conversations that are trained on, and those held out."""
        train, validation = (None if part is None else _read(part) for part in sides(settings))
        if train is None or not len(train):
            raise InputRefused("data: no conversation in it; expected at least one")
        if validation is None and settings["eval_split"]:
            return held_examples(train, [repr(turns) for turns in train.turns], settings)
        return train, validation

    def data(
        self, settings: Settings, learner: Learner, examples: Any, *, rows: int, eval_rows: int
    ) -> Any:
        """Return the `TextDataset` of the conversations."""
        from bridges.data.datasets import documents_dataset

        processor = needed_tokenizer(learner)
        train, held = examples
        data = documents_dataset(
            _documents(processor, train, settings),
            None if held is None else _documents(processor, held, settings),
            processor,
            seq_len=row_length(settings, learner),
            batch=rows,
            pack=settings["packing"],
            seed=settings["seed"],
            files=train.files,
            ignored=train.ignored,
        )
        return laid_apart(settings, learner, data)

    def usage(self, adapter: bool) -> str:
        """Return a call that answers a message."""
        return '([{"role": "user", "content": "Who are you?"}])'


def _read(records: Any) -> Conversations:
    """Return the conversations of a table.

    Raises:
        InputRefused: rows that are none; all of them up to ten.
    """
    from bridges.data.row_problems import PROBLEMS
    from dew.errors import listed

    kind = conversation_kind(records.columns)
    if kind != MESSAGES:
        print(f"data: conversations from {kind}", flush=True)
    turns: list[Turns] = []
    places: list[str] = []
    problems: list[str] = []
    for number in range(len(records)):
        try:
            turns.append(conversation(records[number], kind))
            places.append(records.place(number))
        except InputRefused as problem:
            problems.append(f"{records.place(number)}: {problem}")
            if len(problems) == PROBLEMS:
                break
    if problems:
        raise InputRefused(listed("data: rows that are no conversations:", problems))
    return Conversations(turns, places, len(records.files), tuple(records.ignored))


def _documents(processor: Any, table: Conversations, settings: Settings) -> Any:
    """Return the conversations as documents whose answers are targets."""
    from dew.data import Documents

    only = settings["assistant_only_loss"]
    ids: list[int] = []
    weights: list[float] = []
    lengths = []
    for turns, place in zip(table.turns, table.places, strict=True):
        try:
            if isinstance(turns, tuple):
                tokens, counted = pair_tokens(processor, *turns, completion_only=only)
            else:
                tokens, counted = chat_tokens(processor, turns, assistant_only=only)
        except InputRefused as problem:
            raise InputRefused(f"{place}: {problem}") from None
        ids += tokens
        weights += counted
        lengths.append(len(tokens))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Documents(np.array(ids, np.int32), offsets, np.array(weights, np.float32))
