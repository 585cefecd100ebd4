"""Prompts that a policy answers: their table, their tokens, and their rows at the right end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bridges.finetune.encoded_rows import Ragged
from bridges.finetune.row_table import RowTable, refuse_rows
from dew.data.rows import check_indices, hashed
from dew.errors import InputRefused, shown

PROMPT, IDS = "prompt", "prompt_ids"


@dataclass(frozen=True, eq=False)
class PromptRows:
    """Prompts, each at the right end of a row; see `dew.data.Rows`.

    Args:
        ids: the tokens.
        length: P, what all are padded to, on the left.
        padding: what stands before a prompt.
        columns: what rewards read beside, for the fingerprint.
    """

    ids: Ragged
    length: int
    padding: int
    columns: Mapping[str, Any]

    def __len__(self) -> int:
        """Return the number of prompts."""
        return len(self.ids.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each prompt, int64 [N]."""
        return self.ids.lengths

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the tokens and the columns, in hexadecimal."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        told = json.dumps(self.columns, default=repr, sort_keys=True).encode()
        fields = {"prompt": self.ids.values, "offsets": self.ids.offsets}
        return hashed(fields | {"columns": np.frombuffer(told, np.uint8)})

    def width(self, indices: np.ndarray) -> int:
        """Return the length that all rows are padded to."""
        return self.length

    def take(self, indices: np.ndarray, width: int | None = None) -> dict[str, np.ndarray]:
        """Return `prompt` and `prompt_mask`, int32 [B, P], and `record`, which rows they are.

        Raises:
            InputRefused: an index outside 0 to N - 1.
        """
        check_indices(indices, len(self))
        shape = (len(indices), self.length)
        tokens, mask = np.full(shape, self.padding, np.int32), np.zeros(shape, np.int32)
        for place, row in enumerate(indices):
            part = self.ids.values[self.ids.offsets[row] : self.ids.offsets[row + 1]]
            tokens[place, self.length - len(part) :] = part
            mask[place, self.length - len(part) :] = 1
        return {"prompt": tokens, "prompt_mask": mask, "record": np.asarray(indices, np.int32)}


def prompt_table(records: Any) -> RowTable:
    """Return the prompts of a table and the columns beside them.

    Raises:
        InputRefused: no column `prompt`, or rows in which it is neither text nor messages.
    """
    from bridges.data.row_problems import PROBLEMS

    if PROMPT not in records.columns:
        there = ", ".join(shown(name, 40) for name in list(records.columns)[:12]) or "none"
        raise InputRefused(
            f"data: no column prompt; there is {there}. Expected texts or messages there, and what "
            "rewards read in columns beside it."
        )
    rows, problems = list(records), []
    for number, row in enumerate(rows):
        problem = _problem(row[PROMPT])
        if problem is not None:
            problems.append(f"{records.place(number)}: {problem}")
            if len(problems) == PROBLEMS:
                break
    refuse_rows("data: rows whose prompt cannot be used:", problems)
    return RowTable(
        {name: [row[name] for row in rows] for name in records.columns if name != IDS},
        records=len(rows),
        files=len(records.files),
        ignored=tuple(records.ignored),
    )


def tokenized(table: RowTable, processor: Any, room: int) -> RowTable:
    """Return a table with the tokens of its prompts, without those that are too long.

    Args:
        table: of `prompt_table`.
        processor: the tokenizer; a chat template writes prompts that are messages.
        room: tokens of a prompt, at most.

    Raises:
        InputRefused: messages without a template; a prompt without a token.
    """
    ids, problems = [], []
    for number, prompt in enumerate(table[PROMPT]):
        if isinstance(prompt, str):
            found = processor.encode(prompt)
        else:
            found = processor.encode_chat(prompt, add_generation_prompt=True)[0]
        ids.append(found)
        if not found:
            problems.append(f"row {number + 1}: {shown(prompt, 60)} has no token")
    refuse_rows("data: prompts that are empty:", problems[:10])
    whole = RowTable(
        {**table.fields, IDS: ids},
        records=table.records,
        files=table.files,
        ignored=table.ignored,
    )
    return whole.select([number for number, row in enumerate(ids) if len(row) <= room])


def _problem(prompt: Any) -> str | None:
    """Return what is wrong with a prompt, or None."""
    if isinstance(prompt, str):
        return None if prompt else "an empty prompt"
    if not isinstance(prompt, list) or not prompt:
        return f"holds {shown(prompt, 60)}; expected a text or a list of messages"
    for message in prompt:
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(role, str):
            return f"holds {shown(message, 60)}; expected an object with role and content"
    if prompt[-1]["role"] == "assistant":
        return "ends with the assistant's message; it is the completion that is drawn"
    return None
