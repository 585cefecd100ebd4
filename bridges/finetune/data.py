"""The rows of a run: their length within the model's positions, their data, their report."""

from __future__ import annotations

import sys
from typing import Any

from dew.cli.command import Settings
from dew.errors import InputRefused


def row_length(settings: Settings, model: Any) -> int:
    """Return the predicted positions of a row: max_length tokens, the first of them no target.

    A default longer than the model is shortened with a line that says so.

    Raises:
        InputRefused: a max_length that was asked for exceeds the model's positions.
    """
    length, limit = settings["max_length"], model.position_limit
    if limit is not None and length > limit:
        if settings.given("max_length"):
            raise InputRefused(
                f"max_length is {length}, but the model has {limit} positions; "
                f"give --max_length {limit} or less"
            )
        print(f"max_length: {limit} rather than {length}, the model's positions", file=sys.stderr)
        length = limit
    return length - 1


def open_data(settings: Settings, bundle: Any, *, seq_len: int, rows: int) -> Any:
    """Return the `TextDataset` of a run.

    Args:
        settings: of `dew finetune`.
        bundle: whose tokenizer and vocabulary the data must fit.
        seq_len: predicted positions of a row.
        rows: rows of a microbatch.

    Raises:
        InputRefused: see `bridges.dataset`; no trainable token among them.
    """
    import bridges

    return bridges.dataset(
        settings["dataset_name"],
        bundle.processor,
        seq_len=seq_len,
        batch=rows,
        text_field=settings["dataset_text_field"],
        pack=settings["packing"],
        split=settings["eval_split"] or None,
        eval_source=settings["eval_data"],
        seed=settings["seed"],
        max_positions=bundle.model.position_limit,
        vocab_size=bundle.model.vocab_size,
    )
