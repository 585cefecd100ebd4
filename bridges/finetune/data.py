"""The rows of a run: their length within the model's positions, their data, their report."""

from __future__ import annotations

import sys
from typing import Any

from bridges.finetune.examples import training_records
from bridges.finetune.learner import Learner
from bridges.finetune.separate import one_document_a_row
from dew.cli.command import Settings
from dew.errors import InputRefused

TYPED = ("flag", "the arguments")
"""Where values come from that no file held."""


def row_length(settings: Settings, learner: Learner) -> int:
    """Return the predicted positions of a row: `most_tokens`, the first of them no target."""
    return most_tokens(settings, learner) - 1


def most_tokens(settings: Settings, learner: Learner) -> int:
    """Return the most tokens of a row, max_length.

    A default longer than the model is shortened with a line that says so.

    Raises:
        InputRefused: a max_length that was asked for exceeds the model's positions.
    """
    length, limit = settings["max_length"], learner.position_limit
    if limit is not None and length > limit:
        if chosen(settings, "max_length"):
            raise InputRefused(
                f"max_length is {length}, but the model has {limit} positions; "
                f"give --max_length {limit} or less"
            )
        print(f"max_length: {limit} rather than {length}, the model's positions", file=sys.stderr)
        length = limit
    return length


def chosen(settings: Settings, name: str) -> bool:
    """Whether somebody chose a value: not where a run's config.yaml repeats the default."""
    from bridges.finetune.settings import DATA

    default = next(option.default for option in DATA if option.name == name)
    typed = settings.origins[name] in TYPED
    return settings.given(name) and (typed or settings[name] != default)


def open_data(settings: Settings, learner: Learner, *, seq_len: int, rows: int) -> Any:
    """Return the `TextDataset` of a run; its report's `seq_len` is that of its rows.

    Args:
        settings: of `dew finetune`.
        learner: whose tokenizer, vocabulary and mask the data must fit.
        seq_len: predicted positions of a row, at most.
        rows: rows of a microbatch.

    Raises:
        InputRefused: see `bridges.dataset`; no trainable token among them; packing that was asked
            for and that the model cannot do.
    """
    return read_rows(
        settings,
        learner,
        training_records(settings) if settings["datasets"] else settings["dataset_name"],
        seq_len=seq_len,
        batch=rows,
        split=settings["eval_split"] or None,
        eval_source=settings["eval_data"],
    )


def read_rows(
    settings: Settings, learner: Learner, source: Any, *, seq_len: int, **options: Any
) -> Any:
    """Return the `TextDataset` of any source, packed where the model can keep documents apart.

    Args:
        settings: with the text field, the seed and whether to pack.
        learner: whose tokenizer, vocabulary and mask the data must fit.
        source: see `bridges.dataset`.
        seq_len: predicted positions of a row, at most.
        **options: further ones of `bridges.dataset`.

    Raises:
        InputRefused: as for `open_data`.
    """
    import bridges

    bundle = learner.bundle
    data = bridges.dataset(
        source,
        bundle.processor,
        seq_len=seq_len,
        text_field=settings["dataset_text_field"],
        pack=settings["packing"],
        streaming=settings["dataset_streaming"],
        shuffle_buffer=settings["shuffle_buffer_size"],
        seed=settings["seed"],
        max_positions=learner.position_limit,
        vocab_size=learner.vocab_size,
        **options,
    )
    return laid_apart(settings, learner, data)


def laid_apart(settings: Settings, learner: Learner, data: Any) -> Any:
    """Return packed rows with a document a row where the model cannot keep documents apart.

    Raises:
        InputRefused: packing that was asked for, of a model that cannot.
    """
    bundle = learner.bundle
    if learner.masks_documents or not settings["packing"]:
        return data
    if settings.origins["packing"] == "flag":
        raise InputRefused(
            f"packing: {bundle.family} is traced and takes no mask of documents, so those that "
            "share a row would see each other; leave --packing out"
        )
    separated = one_document_a_row(data, bundle.processor, seed=settings["seed"])
    if separated is data:
        return data
    print(
        f"packing: each document has rows of its own, for {bundle.family} is traced and takes no "
        f"mask of documents; the rows are {separated.report.filled:.0%} filled",
        file=sys.stderr,
    )
    return separated
