"""The rows of documents or of token ids, and which of them are held out for validation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bridges.data.token_files import SUFFIXES as TOKEN_SUFFIXES
from bridges.held_out import held_out
from dew.data import Documents, Rows, TokenRows, WindowRows
from dew.errors import InputRefused, shown


@dataclass(frozen=True)
class SplitRows:
    """Training rows, validation rows and the counts behind them."""

    rows: Rows
    eval_rows: Rows | None
    counts: dict[str, Any]


def text_parts(
    source: Any,
    eval_source: Any,
    read: Callable[..., tuple[Documents, dict[str, Any]]],
    lay_out: Callable[[Documents], TokenRows],
    *,
    split: float | str | None,
    seed: int,
) -> SplitRows:
    """Return the rows of text documents, with those held out or read for validation."""
    documents, counts = read(source)
    counts |= {"documents": len(documents), "tokens": len(documents.tokens), "trained": documents}
    if eval_source is not None:
        return SplitRows(lay_out(documents), lay_out(read(eval_source)[0]), counts)
    if isinstance(split, str):
        return SplitRows(lay_out(documents), lay_out(read(source, part=split)[0]), counts)
    if split is None:
        return SplitRows(lay_out(documents), None, counts)
    with_targets = documents.select(np.flatnonzero(documents.lengths > 1))
    held = held_out([*_each(with_targets)], share=split, seed=seed)
    if held.any():
        train = with_targets.select(np.flatnonzero(~held))
        empty = documents.select(np.flatnonzero(documents.lengths <= 1))
        counts["trained"] = Documents.joined([*_each(train), *_each(empty)])
        return SplitRows(lay_out(train), lay_out(with_targets.select(np.flatnonzero(held))), counts)
    rows = lay_out(with_targets)
    if not len(rows):
        return SplitRows(rows, None, counts)
    held = held_out(list(rows.tokens), share=split, seed=seed)
    if not held.any():
        raise InputRefused(
            f"split: {shown(split)} of {len(documents)} documents in {len(rows)} rows, no two of "
            "them different, so none can be held out. Give more data, a smaller seq_len or an "
            "eval_source."
        )
    return SplitRows(rows.select(np.flatnonzero(~held)), rows.select(np.flatnonzero(held)), counts)


def token_parts(
    source: Any,
    eval_source: Any,
    read: Callable[..., np.ndarray],
    *,
    seq_len: int,
    split: float | None,
) -> SplitRows:
    """Return the windows of a file of token ids; `split` holds out its end."""
    tokens = read(source)
    counts = {"files": 1, "ignored": (), "documents": 1, "tokens": len(tokens)}
    counts |= {"cut": int(len(tokens) > seq_len + 1), "lost_tokens": 0, "dropped": 0}
    if eval_source is not None:
        if not holds_tokens(eval_source):
            raise InputRefused(
                f"eval_source: found {shown(str(eval_source))}; beside a file of token ids, "
                f"expected another one ({' or '.join(TOKEN_SUFFIXES)})."
            )
        return SplitRows(
            WindowRows(tokens, seq_len), WindowRows(read(eval_source), seq_len), counts
        )
    rows = WindowRows(tokens, seq_len)
    if split is None:
        return SplitRows(rows, None, counts)
    kept = len(rows) - max(1, round(split * len(rows)))
    if kept < 1:
        raise InputRefused(
            f"split: {shown(split)} of {len(rows)} windows leaves none to train on. Give more "
            "data, a smaller seq_len or an eval_source."
        )
    place = kept * seq_len  # the last target of the one part is the first input of the other
    parts = tokens[: place + 1], tokens[place:]
    return SplitRows(WindowRows(parts[0], seq_len), WindowRows(parts[1], seq_len), counts)


def cut_documents(documents: Documents, *, seq_len: int, pack: bool) -> dict[str, int]:
    """Return the report's counts of documents that did not go into rows whole."""
    over = documents.lengths - (seq_len + 1)
    return {
        "cut": int((over > 0).sum()),
        "lost_tokens": 0 if pack else int(np.maximum(over, 0).sum()),
        "dropped": int((documents.lengths < 2).sum()),
    }


def holds_tokens(source: Any) -> bool:
    """Say whether a source is one file of token ids."""
    single = isinstance(source, str | os.PathLike)
    return single and Path(source).suffix.lower() in TOKEN_SUFFIXES


def _each(documents: Documents) -> Iterator[np.ndarray]:
    return (documents[number] for number in range(len(documents)))
