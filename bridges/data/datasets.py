"""A dataset of token rows from text files: tokenized, ended, packed, split, reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, overload

import numpy as np

from bridges.data.data_report import (
    DataReport,
    count_targets,
    end_share,
    filled_share,
    first_row,
    start_share,
)
from bridges.data.row_parts import FilePart, Part, source_parts
from bridges.data.split_rows import (
    SplitRows,
    cut_documents,
    holds_tokens,
    text_parts,
    token_parts,
)
from bridges.data.streaming import StreamedDataset, stream_texts, text_of
from bridges.data.text_sources import TextFiles, read_texts
from bridges.data.token_files import read_tokens
from bridges.data.tokenizing import tokenized
from bridges.files.regular_file import shown_path
from dew.data import (
    Dataset,
    Documents,
    Rows,
    RowStream,
    finite_batches,
    packed_rows,
    separate_rows,
)
from dew.errors import InputRefused, shown
from dew.typing import TextProcessor

NAMED_AT_ONCE = (".txt", ".jsonl", ".parquet")


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


@overload
def dataset(
    source: Any,
    processor: TextProcessor | None,
    *,
    seq_len: int,
    batch: int,
    text_field: str = "text",
    pack: bool = True,
    split: float | str | None = None,
    eval_source: Any = None,
    seed: int = 0,
    add_eos: bool = True,
    encoding: str = "utf-8",
    max_positions: int | None = None,
    vocab_size: int | None = None,
    token_dtype: str = "uint16",
    streaming: Literal[False] = False,
    shuffle_buffer: int = 1000,
) -> TextDataset: ...


@overload
def dataset(
    source: Any,
    processor: TextProcessor | None,
    *,
    seq_len: int,
    batch: int,
    text_field: str = "text",
    pack: bool = True,
    split: float | str | None = None,
    eval_source: Any = None,
    seed: int = 0,
    add_eos: bool = True,
    encoding: str = "utf-8",
    max_positions: int | None = None,
    vocab_size: int | None = None,
    token_dtype: str = "uint16",
    streaming: Literal[True],
    shuffle_buffer: int = 1000,
) -> StreamedDataset: ...


def dataset(
    source: Any,
    processor: TextProcessor | None,
    *,
    seq_len: int,
    batch: int,
    text_field: str = "text",
    pack: bool = True,
    split: float | str | None = None,
    eval_source: Any = None,
    seed: int = 0,
    add_eos: bool = True,
    encoding: str = "utf-8",
    max_positions: int | None = None,
    vocab_size: int | None = None,
    token_dtype: str = "uint16",
    streaming: bool = False,
    shuffle_buffer: int = 1000,
) -> TextDataset | StreamedDataset:
    """Read, tokenize and lay out documents as rows of L+1 tokens.

    Args:
        source: a `.txt` file (one document), `.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet` or
            `.arrow` (one a row), a folder or a pattern of such files, several paths, the id of a
            dataset on the hub, or rows in memory, as `bridges.data.records.read_records` takes
            them; tar shards, when streaming; or one file of token ids, `.bin` or `.npy`.
        processor: the tokenizer, such as `bundle.processor`.
        seq_len: L, the predicted positions of a row.
        batch: rows of a global batch.
        text_field: the field of a row that holds its text.
        pack: several documents a row, no attention and no loss across them; without it one
            document a row, of which the first L+1 tokens are kept.
        split: the share of the documents held out for validation; of the rows, when there is one
            document; the end of the stream, of a file of token ids. Or a name, such as
            `validation`: that split of the source is validated on, whole.
        eval_source: what to validate on instead, read in the same way.
        seed: shuffles the rows of each epoch, and chooses what `split` holds out.
        add_eos: whether an end token closes each document, as a target.
        encoding: of text and JSON files: utf-8, latin-1 or cp1252.
        max_positions: the most positions that the model has; None leaves that to the caller.
        vocab_size: the model's vocabulary; None takes the tokenizer's.
        token_dtype: of a `.bin` file: uint16, uint32 or int32.
        streaming: whether documents are read, tokenized and packed while the run goes on, and
            not all before; rows are not counted then, and a share held out is chosen text by text.
        shuffle_buffer: when streaming, how many documents are packed and shuffled together.

    Returns:
        The dataset; its batches hold `text` int32 [B, L+1] and `segments` int32 [B, L+1].

    Raises:
        InputRefused: data that cannot be read, that holds nothing to train on, or options that
            contradict each other.
    """
    _check_options(seq_len, batch, split, eval_source, max_positions)
    if holds_tokens(source):
        if streaming or isinstance(split, str):
            raise InputRefused(
                "data: a file of token ids is looked up where it lies and has no splits by name. "
                "Leave streaming out, and give a share or an eval_source to validate on."
            )
        size = vocab_size or (processor.vocab_size if processor else 2**31)
        read = partial(read_tokens, vocab_size=size, dtype=token_dtype)
        parts = token_parts(source, eval_source, read, seq_len=seq_len, split=split)
    else:
        if processor is None:
            raise InputRefused(
                "data: text needs a tokenizer, and this model has none. Put its tokenizer.json "
                "beside its weights, or give a file of token ids (.bin or .npy)."
            )
        if streaming:
            return stream_texts(
                source,
                processor,
                seq_len=seq_len,
                batch=batch,
                text_field=text_field,
                pack=pack,
                split=split,
                eval_source=eval_source,
                seed=seed,
                add_eos=add_eos,
                encoding=encoding,
                vocab_size=vocab_size,
                shuffle_buffer=shuffle_buffer,
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
        parts = text_parts(source, eval_source, read, lay_out, split=split, seed=seed)
        parts.counts.update(cut_documents(parts.counts.pop("trained"), seq_len=seq_len, pack=pack))
    return _dataset(parts, processor, seq_len=seq_len, batch=batch, seed=seed)


def documents_dataset(
    documents: Documents,
    eval_documents: Documents | None,
    processor: TextProcessor,
    *,
    seq_len: int,
    batch: int,
    pack: bool = True,
    seed: int = 0,
    files: int = 0,
    ignored: Sequence[str] = (),
) -> TextDataset:
    """Lay out tokenized documents, some of their tokens no targets perhaps, as rows.

    Args:
        documents: what is trained on.
        eval_documents: what is validated on, or None.
        processor: the tokenizer, for the report.
        seq_len: L, the predicted positions of a row.
        batch: rows of a global batch.
        pack: as for `dataset`.
        seed: shuffles the rows of each epoch.
        files: how many were read.
        ignored: names that were not read.

    Returns:
        The dataset; its batches hold `weights` too where the documents have them.

    Raises:
        InputRefused: nothing to train on.
    """
    lay_out = partial(packed_rows if pack else separate_rows, seq_len=seq_len)
    counts = {"files": files, "ignored": tuple(ignored), "documents": len(documents)}
    counts |= {
        "tokens": len(documents.tokens),
        **cut_documents(documents, seq_len=seq_len, pack=pack),
    }
    held = None if eval_documents is None else lay_out(eval_documents)
    parts = SplitRows(lay_out(documents), held, counts)
    return _dataset(parts, processor, seq_len=seq_len, batch=batch, seed=seed)


def _dataset(
    parts: SplitRows, processor: TextProcessor | None, *, seq_len: int, batch: int, seed: int
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
    source: Any,
    *,
    part: str = "train",
    processor: TextProcessor,
    text_field: str,
    encoding: str,
    add_eos: bool,
    vocab_size: int | None,
) -> tuple[Documents, dict[str, Any]]:
    """Return the tokenized documents of a source, and its files for the report."""
    found = source_parts(source, split=part, encoding=encoding)
    texts = _texts(found.parts, text_field, encoding)
    documents = tokenized(texts, processor, add_eos=add_eos, vocab_size=vocab_size)
    if not len(documents):
        paths = [part.state.path for part in found.parts if isinstance(part, FilePart)]
        names = ", ".join(shown_path(path) for path in paths[:3]) or "the data"
        raise InputRefused(f"{names}: an empty dataset: no row in it. Expected at least one.")
    return documents, {"files": found.files, "ignored": found.ignored}


def _texts(parts: Sequence[Part], text_field: str, encoding: str) -> Iterator[str]:
    """Give the documents of all parts, one by one."""
    for part in parts:
        if isinstance(part, FilePart) and part.state.path.suffix.lower() in NAMED_AT_ONCE:
            # These readers name all unusable rows of a file at once.
            files = TextFiles((part.state.path,))
            yield from read_texts(files, text_field=text_field, encoding=encoding)
        else:
            for _, place, row in part.rows(0):
                yield text_of(row, place, text_field)


def _check_options(
    seq_len: int,
    batch: int,
    split: float | str | None,
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
    if split is not None and not isinstance(split, str) and not 0 < split < 1:
        problems.append(f"split is {shown(split)}, expected a share above 0 and below 1")
    if problems:
        raise InputRefused(f"data: {'; '.join(problems)}.")
