"""Datasets over sources that are read as they come: texts packed block by block, or any rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from bridges.data.data_report import count_targets, filled_share, first_row, shortened
from bridges.data.row_parts import Part, Parts, source_parts
from bridges.data.row_problems import absent_field, text_problem
from bridges.data.tokenizing import tokenized
from dew.data import Dataset, Rows, packed_rows, separate_rows
from dew.data.blocks import Block, BlockStream, block_batches
from dew.data.stream import epoch_order
from dew.errors import InputRefused, shown
from dew.typing import TextProcessor

UNSHUFFLED_ROWS = 1024
BLOCK_CHARACTERS = 1 << 25
"""Beyond so many characters a block ends before its number of documents is reached."""
LayOut = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], Rows | None]


@dataclass(frozen=True)
class StreamReport:
    """What is known of a stream before it is read: its files and its first block.

    Args:
        files: how many files there are.
        ignored: names in the folder that are not read.
        documents: documents of the first block.
        rows: rows they are laid out as.
        targets: tokens of these that the loss counts.
        filled: share of their positions that hold a token and not padding.
        example_text: the first row as text; what is not a target stands in double brackets.
        fingerprint: SHA-256 of what a resumed run must have again.
        seq_len: predicted positions of a row.
    """

    files: int
    ignored: tuple[str, ...]
    documents: int
    rows: int
    targets: int
    filled: float
    example_text: str
    fingerprint: str
    seq_len: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them."""
        return asdict(self) | {"ignored": list(self.ignored)}

    def __str__(self) -> str:
        """Return the report for reading, a fact a line."""
        return "\n".join(
            (
                f"streamed      {self.files:,} files, read as they come",
                f"first block   {self.documents:,} documents, {self.rows:,} rows, "
                f"{self.targets:,} targets, {self.filled:.1%} filled",
                f"fingerprint   {self.fingerprint[:16]}",
                f"first row     ([[not trained on]]) {shortened(self.example_text)}",
            )
        )


@dataclass(frozen=True)
class StreamedDataset(Dataset):
    """A dataset whose rows are not counted beforehand: `records` is 0.

    Args:
        train: see `dew.data.Dataset`; its iterator resumes from a position.
        val: the same.
        records: 0, for not known.
        batch: rows of a global batch.
        report: what is known of the data.
    """

    report: StreamReport | None = None


@dataclass(frozen=True)
class RowBlocks:
    """The rows of a source in blocks, its files in another order each epoch.

    Args:
        parts: of the source.
        lay_out: makes the rows of a block of (place, row); None for a block without any.
        block_rows: how many of the source's rows a block holds.
        seed: orders the files; None keeps them in the order of their names.
        settings: what the rows depend on besides, as JSON can hold it.
        keep: which rows are read.
        size: how much of `BLOCK_CHARACTERS` a row takes.
    """

    parts: Sequence[Part]
    lay_out: LayOut
    block_rows: int
    seed: int | None
    settings: Mapping[str, Any]
    keep: Callable[[Mapping[str, Any], str], bool] | None = None
    size: Callable[[Mapping[str, Any]], int] = field(default=lambda row: 0)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the parts' own hashes and of the settings."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256(json.dumps(dict(self.settings), sort_keys=True).encode())
        digest.update(f"{self.block_rows} {self.seed}\n".encode())
        for part in self.parts:
            digest.update(f"{part.digest()}\n".encode())
        return digest.hexdigest()

    def read(self, epoch: int, start: Any = None) -> Iterator[Block]:
        """Give the blocks of an epoch from `start` on: the number of a part and a place in it."""
        block: list[tuple[str, Mapping[str, Any]]] = []
        begun, held = None, 0
        for place, (where, row) in self._rows(epoch, start):
            if not block:
                begun = place
            block.append((where, row))
            held += self.size(row)
            if len(block) == self.block_rows or held >= BLOCK_CHARACTERS:
                yield Block(begun, self.lay_out(block), len(block))
                block, held = [], 0
        if block:
            yield Block(begun, self.lay_out(block), len(block))

    def _rows(self, epoch: int, start: Any) -> Iterator[tuple[Any, tuple[str, Any]]]:
        order = np.arange(len(self.parts))
        if self.seed is not None:
            order = epoch_order(len(self.parts), seed=self.seed, epoch=epoch)
        first, inside = (0, None) if start is None else start
        for number in range(first, len(order)):
            part = self.parts[order[number]]
            for begin, place, row in part.rows(epoch, inside if number == first else None):
                if self.keep is None or self.keep(row, place):
                    yield [number, begin], (place, row)


def stream_texts(
    source: Any,
    processor: TextProcessor,
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
    vocab_size: int | None = None,
    shuffle_buffer: int = 1000,
) -> StreamedDataset:
    """Read, tokenize and pack documents while the run goes on; `bridges.dataset` names the rest.

    The documents are taken in blocks of `shuffle_buffer`, in the order of the files, which is
    another each epoch; a block is tokenized, packed by itself and its rows shuffled. A resumed run
    reads its block again and goes on with the next row, on any number of processes. Each process
    reads everything and keeps its share.

    Args:
        source: see `bridges.data.row_parts.source_parts`.
        processor: the tokenizer.
        seq_len: L, the predicted positions of a row.
        batch: rows of a global batch.
        text_field: the field of a row that holds its text.
        pack: several documents of a block in a row.
        split: the share of the documents held out for validation, by the hash of their texts; or
            the name of the source's split to validate on.
        eval_source: what to validate on instead.
        seed: shuffles files and rows, and chooses what `split` holds out.
        add_eos: whether an end token closes each document.
        encoding: of text, CSV and JSON files.
        vocab_size: the model's vocabulary; None takes the tokenizer's.
        shuffle_buffer: documents of a block; at most 1 keeps the order of the source.

    Raises:
        InputRefused: a first block that cannot be read or holds nothing to train on.
    """
    shuffle = _shuffles(shuffle_buffer)
    lay_out = partial(
        _text_rows,
        text_field=text_field,
        encode=partial(tokenized, processor=processor, add_eos=add_eos, vocab_size=vocab_size),
        lay_out=partial(packed_rows if pack else separate_rows, seq_len=seq_len),
    )
    settings = {
        "seq_len": seq_len,
        "text_field": text_field,
        "pack": pack,
        "add_eos": add_eos,
        "encoding": encoding,
        "split": split if isinstance(split, float) else None,
    }
    held = None if not isinstance(split, float) else (split, seed)

    def blocks(parts: Parts, *, ordered: bool, kept: bool | None) -> RowBlocks:
        return RowBlocks(
            parts.parts,
            lay_out,
            shuffle_buffer if shuffle else UNSHUFFLED_ROWS,
            None if ordered else seed,
            settings,
            None
            if kept is None or held is None
            else partial(_is_kept, held=held, kept=kept, text_field=text_field),
            partial(_characters, text_field=text_field),
        )

    parts = source_parts(source, encoding=encoding)
    train = blocks(parts, ordered=not shuffle, kept=True)
    report = _report(train, parts, processor)
    train = replace(train, settings={**settings, "first": report.fingerprint})
    val = None
    if eval_source is not None or isinstance(split, str):
        found = source_parts(
            source if eval_source is None else eval_source,
            split=split if isinstance(split, str) else "train",
            encoding=encoding,
        )
        val = blocks(found, ordered=True, kept=None)
    elif held is not None:
        val = blocks(parts, ordered=True, kept=False)
    return StreamedDataset(
        train=partial(BlockStream, train, batch=batch, seed=seed, shuffle=shuffle),
        val=None if val is None else partial(block_batches, val, batch=batch),
        records=0,
        batch=batch,
        report=replace(report, fingerprint=train.fingerprint),
    )


def stream_rows(
    source: Any,
    collate: Callable[[list[Mapping[str, Any]]], dict[str, np.ndarray]],
    *,
    batch: int,
    split: str = "train",
    seed: int = 0,
    encoding: str = "utf-8",
    shuffle_buffer: int = 1000,
) -> StreamedDataset:
    """Read rows of any kind while the run goes on, and let a function make batches of them.

    Args:
        source: see `bridges.data.row_parts.source_parts`.
        collate: rows to fields [rows, ...]: of any number of rows, and of one shape beyond the
            first axis; images, say, are read there.
        batch: rows of a global batch.
        split: which split of the source.
        seed: shuffles files and rows.
        encoding: of text, CSV and JSON files.
        shuffle_buffer: rows of a block that is shuffled; at most 1 keeps their order.

    Raises:
        InputRefused: see `source_parts`.
    """
    shuffle = _shuffles(shuffle_buffer)
    parts = source_parts(source, split=split, encoding=encoding, lines=True)
    blocks = RowBlocks(
        parts.parts,
        partial(_collated, collate=collate),
        shuffle_buffer if shuffle else UNSHUFFLED_ROWS,
        seed if shuffle else None,
        {"encoding": encoding},
    )
    return StreamedDataset(
        train=partial(BlockStream, blocks, batch=batch, seed=seed, shuffle=shuffle),
        val=None,
        records=0,
        batch=batch,
    )


@dataclass(frozen=True, eq=False)
class CollatedRows:
    """Rows that a function makes a batch of when they are taken."""

    rows: Sequence[Mapping[str, Any]]
    collate: Callable[[list[Mapping[str, Any]]], dict[str, np.ndarray]]
    fingerprint: str = ""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return the fields that the function makes of the rows at `indices`.

        Raises:
            InputRefused: fields that no step can take, or an integer that 32 bits do not hold.
        """
        from bridges.torch.loader_fields import named_fields

        return named_fields(self.collate([self.rows[n] for n in indices.tolist()]), None)


def _shuffles(shuffle_buffer: int) -> bool:
    if type(shuffle_buffer) is not int or shuffle_buffer < 0:
        raise InputRefused(
            f"shuffle_buffer is {shown(shuffle_buffer)}; expected how many rows are shuffled "
            "together, or 0 to keep their order."
        )
    return shuffle_buffer > 1


def _collated(block: Sequence[tuple[str, Mapping[str, Any]]], *, collate: Any) -> Rows:
    return CollatedRows([row for _, row in block], collate)


def _text_rows(
    block: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    text_field: str,
    encode: Any,
    lay_out: Any,
) -> Rows | None:
    """Return a block of documents as rows of tokens."""
    texts = [text_of(row, place, text_field) for place, row in block]
    rows = lay_out(encode(texts))
    return rows if len(rows) else None


def text_of(row: Mapping[str, Any], place: str, text_field: str) -> str:
    """Return the text of a row.

    Raises:
        InputRefused: it has no such field, or no text in it; the message gives the place.
    """
    if text_field not in row:
        raise InputRefused(f"{place}: {absent_field(text_field, row)}")
    problem = text_problem(row[text_field])
    if problem is not None:
        raise InputRefused(f"{place}: field {shown(text_field, 60)} {problem}")
    return row[text_field]


def _is_kept(
    row: Mapping[str, Any],
    place: str,
    *,
    held: tuple[float, int],
    kept: bool,
    text_field: str,
) -> bool:
    """Say whether a row is on one side of the split; equal texts are always on the same."""
    share, seed = held
    text = text_of(row, place, text_field).encode("utf-8", "replace")
    digest = hashlib.sha256(str(seed).encode() + b"\0" + text).digest()
    return (int.from_bytes(digest[:8], "big") < share * 2**64) != kept


def _characters(row: Mapping[str, Any], *, text_field: str) -> int:
    text = row.get(text_field)
    return len(text) if isinstance(text, str) else 0


def _report(blocks: RowBlocks, parts: Parts, processor: TextProcessor) -> StreamReport:
    """Return the report on the first block, whose fingerprint is that of its rows."""
    documents = 0
    for block in blocks.read(0):
        documents += block.items
        if block.rows is not None and count_targets(block.rows):
            rows = block.rows
            return StreamReport(
                files=parts.files,
                ignored=parts.ignored,
                documents=documents,
                rows=len(rows),
                targets=count_targets(rows),
                filled=filled_share(rows),
                example_text=first_row(rows, processor)["example_text"],
                fingerprint=rows.fingerprint,
                seq_len=rows.take(np.zeros(1, np.int64))["text"].shape[1] - 1,
            )
    raise InputRefused(
        "data: no trainable token in the training data. Expected at least one document of two "
        "tokens; check the source and the text field."
    )
