"""A dataset of token rows from text files: tokenized, ended, packed, split, reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bridges.data.data_report import (
    DataReport,
    count_targets,
    end_share,
    filled_share,
    first_row,
    start_share,
)
from bridges.data.text_sources import Source, find_files, read_texts
from bridges.data.token_files import SUFFIXES as TOKEN_SUFFIXES
from bridges.data.token_files import read_tokens
from bridges.data.tokenizing import tokenized
from bridges.files.regular_file import shown_path
from bridges.held_out import held_out
from dew.data import (
    Dataset,
    Documents,
    Rows,
    RowStream,
    TokenRows,
    WindowRows,
    finite_batches,
    packed_rows,
    separate_rows,
)
from dew.errors import InputRefused, shown
from dew.typing import TextProcessor


@dataclass(frozen=True)
class TextDataset(Dataset):
    """A dataset of token rows, with what is known about it.

    Args:
        train: see `dew.data.Dataset`; its iterator resumes from a position.
        val: the same.
        records: training rows.
        batch: rows of a global batch.
        rows: the training rows.
        eval_rows: the validation rows, none of which is in `rows`; or None.
        report: what became of the data.
    """

    rows: Rows
    eval_rows: Rows | None
    report: DataReport


@dataclass(frozen=True)
class _Parts:
    """Training rows, validation rows and the counts behind them."""

    rows: Rows
    eval_rows: Rows | None
    counts: dict[str, Any]


def dataset(
    source: Source,
    processor: TextProcessor | None,
    *,
    seq_len: int,
    batch: int,
    text_field: str = "text",
    pack: bool = True,
    split: float | None = None,
    eval_source: Source | None = None,
    seed: int = 0,
    add_eos: bool = True,
    encoding: str = "utf-8",
    max_positions: int | None = None,
    vocab_size: int | None = None,
    token_dtype: str = "uint16",
) -> TextDataset:
    """Read, tokenize and lay out documents as rows of L+1 tokens.

    Args:
        source: a `.txt` file (one document), `.jsonl`, `.json` or `.parquet` (one a row), a folder
            of such files, several paths; or one file of token ids, `.bin` or `.npy`.
        processor: the tokenizer, such as `bundle.processor`.
        seq_len: L, the predicted positions of a row.
        batch: rows of a global batch.
        text_field: the field of a row that holds its text.
        pack: several documents a row, no attention and no loss across them; without it one
            document a row, of which the first L+1 tokens are kept.
        split: the share of the documents held out for validation; of the rows, when there is one
            document; the end of the stream, of a file of token ids.
        eval_source: what to validate on instead, read in the same way.
        seed: shuffles the rows of each epoch, and chooses what `split` holds out.
        add_eos: whether an end token closes each document, as a target.
        encoding: of text and JSON files: utf-8, latin-1 or cp1252.
        max_positions: the most positions that the model has; None leaves that to the caller.
        vocab_size: the model's vocabulary; None takes the tokenizer's.
        token_dtype: of a `.bin` file: uint16, uint32 or int32.

    Returns:
        The dataset; its batches hold `text` int32 [B, L+1] and `segments` int32 [B, L+1].

    Raises:
        InputRefused: data that cannot be read, that holds nothing to train on, or options that
            contradict each other.
    """
    _check_options(seq_len, batch, split, eval_source, max_positions)
    if _holds_tokens(source):
        size = vocab_size or (processor.vocab_size if processor else 2**31)
        read = partial(read_tokens, vocab_size=size, dtype=token_dtype)
        parts = _token_parts(source, eval_source, read, seq_len=seq_len, split=split)
    else:
        if processor is None:
            raise InputRefused(
                "data: text needs a tokenizer, and this model has none. Put its tokenizer.json "
                "beside its weights, or give a file of token ids (.bin or .npy)."
            )
        read = partial(
            _read_documents,
            processor=processor,
            text_field=text_field,
            encoding=encoding,
            add_eos=add_eos,
            vocab_size=vocab_size,
        )
        lay_out = partial(packed_rows if pack else separate_rows, seq_len=seq_len)
        parts = _text_parts(source, eval_source, read, lay_out, split=split, seed=seed)
        parts.counts.update(_cut(parts.counts.pop("trained"), seq_len=seq_len, pack=pack))
    return _dataset(parts, processor, seq_len=seq_len, batch=batch, seed=seed)


def _dataset(
    parts: _Parts, processor: TextProcessor | None, *, seq_len: int, batch: int, seed: int
) -> TextDataset:
    """Return the dataset over finished rows, once there is something to train on."""
    rows, eval_rows = parts.rows, parts.eval_rows
    targets = count_targets(rows) if len(rows) else 0
    eval_targets = count_targets(eval_rows) if eval_rows is not None and len(eval_rows) else 0
    for name, found, given in (
        ("training", targets, True),
        ("validation", eval_targets, eval_rows is not None),
    ):
        if given and not found:
            raise InputRefused(
                f"data: no trainable token in the {name} data: {parts.counts['documents']} "
                f"documents, {parts.counts['tokens']} tokens, none of them after another one of "
                "its document. Expected at least one document of two tokens; check the file and "
                "the text field."
            )
    report = DataReport(
        **parts.counts,
        rows=len(rows),
        seq_len=seq_len,
        targets=targets,
        filled=filled_share(rows),
        start_share=start_share(rows, processor.bos_token_id if processor else None),
        end_share=end_share(rows, processor.eos_token_ids if processor else ()),
        validation_rows=0 if eval_rows is None else len(eval_rows),
        validation_targets=eval_targets,
        fingerprint=rows.fingerprint,
        **first_row(rows, processor),
    )
    return TextDataset(
        train=partial(RowStream, rows, batch=batch, seed=seed),
        val=None if eval_rows is None else partial(finite_batches, eval_rows, batch=batch),
        records=len(rows),
        batch=batch,
        rows=rows,
        eval_rows=eval_rows,
        report=report,
    )


def _read_documents(
    source: Source,
    *,
    processor: TextProcessor,
    text_field: str,
    encoding: str,
    add_eos: bool,
    vocab_size: int | None,
) -> tuple[Documents, dict[str, Any]]:
    """Return the tokenized documents of a source, and its files for the report."""
    files = find_files(source)
    texts = read_texts(files, text_field=text_field, encoding=encoding)
    documents = tokenized(texts, processor, add_eos=add_eos, vocab_size=vocab_size)
    if not len(documents):
        names = ", ".join(shown_path(path) for path in files.paths[:3])
        raise InputRefused(f"{names}: an empty dataset: no row in it. Expected at least one.")
    return documents, {"files": len(files.paths), "ignored": files.ignored}


def _text_parts(
    source: Source,
    eval_source: Source | None,
    read: Callable[[Source], tuple[Documents, dict[str, Any]]],
    lay_out: Callable[[Documents], TokenRows],
    *,
    split: float | None,
    seed: int,
) -> _Parts:
    """Return the rows of text documents, with those held out or read for validation."""
    documents, counts = read(source)
    counts |= {"documents": len(documents), "tokens": len(documents.tokens), "trained": documents}
    if eval_source is not None:
        return _Parts(lay_out(documents), lay_out(read(eval_source)[0]), counts)
    if split is None:
        return _Parts(lay_out(documents), None, counts)
    with_targets = documents.select(np.flatnonzero(documents.lengths > 1))
    held = held_out([*_each(with_targets)], share=split, seed=seed)
    if held.any():
        train = with_targets.select(np.flatnonzero(~held))
        empty = documents.select(np.flatnonzero(documents.lengths <= 1))
        counts["trained"] = Documents.joined([*_each(train), *_each(empty)])
        return _Parts(lay_out(train), lay_out(with_targets.select(np.flatnonzero(held))), counts)
    rows = lay_out(with_targets)
    if not len(rows):
        return _Parts(rows, None, counts)
    held = held_out(list(rows.tokens), share=split, seed=seed)
    if not held.any():
        raise InputRefused(
            f"split: {shown(split)} of {len(documents)} documents in {len(rows)} rows, no two of "
            "them different, so none can be held out. Give more data, a smaller seq_len or an "
            "eval_source."
        )
    return _Parts(rows.select(np.flatnonzero(~held)), rows.select(np.flatnonzero(held)), counts)


def _token_parts(
    source: Any,
    eval_source: Any,
    read: Callable[..., np.ndarray],
    *,
    seq_len: int,
    split: float | None,
) -> _Parts:
    """Return the windows of a file of token ids; `split` holds out its end."""
    tokens = read(source)
    counts = {"files": 1, "ignored": (), "documents": 1, "tokens": len(tokens)}
    counts |= {"cut": int(len(tokens) > seq_len + 1), "lost_tokens": 0, "dropped": 0}
    if eval_source is not None:
        if not _holds_tokens(eval_source):
            raise InputRefused(
                f"eval_source: found {shown(str(eval_source))}; beside a file of token ids, "
                f"expected another one ({' or '.join(TOKEN_SUFFIXES)})."
            )
        return _Parts(WindowRows(tokens, seq_len), WindowRows(read(eval_source), seq_len), counts)
    rows = WindowRows(tokens, seq_len)
    if split is None:
        return _Parts(rows, None, counts)
    kept = len(rows) - max(1, round(split * len(rows)))
    if kept < 1:
        raise InputRefused(
            f"split: {shown(split)} of {len(rows)} windows leaves none to train on. Give more "
            "data, a smaller seq_len or an eval_source."
        )
    place = kept * seq_len  # the last target of the one part is the first input of the other
    parts = tokens[: place + 1], tokens[place:]
    return _Parts(WindowRows(parts[0], seq_len), WindowRows(parts[1], seq_len), counts)


def _cut(documents: Documents, *, seq_len: int, pack: bool) -> dict[str, int]:
    """Return the report's counts of documents that did not go into rows whole."""
    over = documents.lengths - (seq_len + 1)
    return {
        "cut": int((over > 0).sum()),
        "lost_tokens": 0 if pack else int(np.maximum(over, 0).sum()),
        "dropped": int((documents.lengths < 2).sum()),
    }


def _check_options(
    seq_len: int,
    batch: int,
    split: float | None,
    eval_source: Any,
    max_positions: int | None,
) -> None:
    """Refuse numbers out of range and options that exclude each other, all at once."""
    problems = [
        f"{name} is {shown(value)}, expected a whole number of at least 1"
        for name, value in (("seq_len", seq_len), ("batch", batch))
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1
    ]
    if not problems and max_positions is not None and seq_len > max_positions:
        problems.append(
            f"seq_len is {seq_len}, but the model has {max_positions} positions; "
            f"take at most {max_positions}"
        )
    if split is not None and eval_source is not None:
        problems.append("both split and eval_source are given; give one of them")
    if split is not None and not 0 < split < 1:
        problems.append(f"split is {shown(split)}, expected a share above 0 and below 1")
    if problems:
        raise InputRefused(f"data: {'; '.join(problems)}.")


def _holds_tokens(source: Any) -> bool:
    single = not isinstance(source, list | tuple)
    return single and Path(source).suffix.lower() in TOKEN_SUFFIXES


def _each(documents: Documents):
    return (documents[number] for number in range(len(documents)))
