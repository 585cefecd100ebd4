"""The tables of a run: what is trained on, what is held out, and their rows by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bridges.held_out import held_out
from dew.cli.command import Settings
from dew.errors import InputRefused, UnknownName


def sides(settings: Settings) -> tuple[Any, Any]:
    """Return the records that are trained on, and those of `eval_data`, or None.

    Raises:
        InputRefused: a source that cannot be read.
    """
    train = training_records(settings)
    validation = None
    if settings["eval_data"]:
        validation = _held(settings)
    return train, validation


def training_records(settings: Settings) -> Any:
    """Return the records that are trained on: of `datasets`, else of `dataset_name`.

    Raises:
        InputRefused: a source that cannot be read.
    """
    if settings["datasets"]:
        from bridges.data.mixtures import read_mixture

        return read_mixture(settings["datasets"], seed=settings["seed"])
    from bridges.data.records import read_records

    return read_records(settings["dataset_name"], split=settings["dataset_train_split"])


def check_source(settings: Settings) -> None:
    """Refuse no source of training data, two, or what several cannot do.

    Raises:
        InputRefused: neither `dataset_name` nor `datasets`, both, or `datasets` to be streamed.
    """
    if not settings["datasets"]:
        if not settings["dataset_name"]:
            raise InputRefused("dataset_name is missing: give --dataset_name, --data or --datasets")
        return
    if settings["dataset_name"]:
        raise InputRefused(
            f"both dataset_name ({settings['dataset_name']}) and datasets say what is trained on; "
            "give one of them"
        )
    if settings["dataset_streaming"]:
        raise InputRefused(
            "datasets are looked up row by row and cannot be streamed; leave dataset_streaming "
            "out, or name one source as dataset_name"
        )


def _held(settings: Settings) -> Any:
    """Return the records of `eval_data`: of its test split, or all where it has no splits."""
    from bridges.data.records import read_records

    source, split = settings["eval_data"], settings["dataset_test_split"]
    try:
        return read_records(source, split=split)
    except UnknownName:
        if settings.given("dataset_test_split"):
            raise
    return read_records(source, split="train")


def records_of(records: Any, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the values of some columns, a tuple a row."""
    return list(zip(*(records.column(name) for name in columns), strict=True))


def held_examples(table: Any, keys: Sequence[str], settings: Settings) -> tuple[Any, Any]:
    """Return what is kept of a table and what `eval_split` holds out; equal rows stay together.

    Args:
        table: with `select(indices)`.
        keys: a text for each row that tells it from others.
        settings: with `eval_split` and `seed`.

    Raises:
        InputRefused: all rows are equal.
    """
    arrays = [np.frombuffer(key.encode("utf-8", "surrogatepass"), np.uint8) for key in keys]
    held = held_out(arrays, share=settings["eval_split"], seed=settings["seed"])
    if not held.any():
        raise InputRefused(
            f"eval_split: {settings['eval_split']} of {len(keys)} rows, no two of them different, "
            "so none can be held out. Give more data, or --eval_data."
        )
    return table.select(np.flatnonzero(~held)), table.select(np.flatnonzero(held))
