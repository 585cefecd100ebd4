"""What became of the data, told before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np

from dew.data import Rows, TokenRows, WindowRows
from dew.typing import TextProcessor

EXAMPLE_CHARACTERS = 600
IGNORED_SHOWN = 5
CHUNK_ROWS = 1024


@dataclass(frozen=True)
class DataReport:
    """Counts of what is trained on, and one row as the loss sees it.

    Args:
        files: how many files were read.
        ignored: names in the folder that were not read.
        documents: documents found, those held out among them.
        tokens: their tokens, end tokens included.
        rows: training rows kept.
        seq_len: predicted positions of a row.
        cut: documents longer than a row: cut into pieces if packed, else shortened.
        lost_tokens: tokens that shortening lost.
        dropped: documents without a target (no token, or one).
        targets: tokens that the loss counts in one epoch.
        filled: share of the positions that hold a token and not padding.
        start_share: share of the rows that open with the tokenizer's start token.
        end_share: share of the rows whose last target is an end token.
        validation_rows: rows of the validation set.
        validation_targets: tokens that the loss counts in it.
        example: token ids of the first row.
        example_mask: which of them are targets.
        example_text: that row as text; what is not a target stands in double brackets.
        fingerprint: SHA-256 of the training rows, which a resumed run must have again.
    """

    files: int
    ignored: tuple[str, ...]
    documents: int
    tokens: int
    rows: int
    seq_len: int
    cut: int
    lost_tokens: int
    dropped: int
    targets: int
    filled: float
    start_share: float
    end_share: float
    validation_rows: int
    validation_targets: int
    example: tuple[int, ...]
    example_mask: tuple[bool, ...]
    example_text: str
    fingerprint: str

    def __str__(self) -> str:
        """Return the report for reading, a fact a line."""
        validation = "none"
        if self.validation_rows:
            validation = f"{self.validation_rows:,} rows, {self.validation_targets:,} targets"
        lost = f" ({self.lost_tokens:,} tokens lost)" if self.lost_tokens else ""
        starts = "none; a document is scored from its second token on"
        if self.start_share:
            starts = f"first token of {self.start_share:.1%} of the rows"
        lines = [
            f"documents     {self.documents:,} in {_files(self.files)}, {self.tokens:,} tokens",
            f"rows kept     {self.rows:,} of {self.seq_len:,} predicted tokens, "
            f"{self.filled:.1%} filled",
            f"cut           {self.cut:,} documents longer than a row{lost}",
            f"dropped       {self.dropped:,} documents without anything to predict",
            f"targets       {self.targets:,} trainable tokens an epoch",
            f"start tokens  {starts}",
            f"end tokens    last label of {self.end_share:.1%} of the rows",
            f"validation    {validation}",
            f"fingerprint   {self.fingerprint[:16]}",
            f"first row     ([[not trained on]]) {shortened(self.example_text)}",
        ]
        if self.ignored:
            names = ", ".join(_visible(name) for name in self.ignored[:IGNORED_SHOWN])
            more = len(self.ignored) - IGNORED_SHOWN
            lines.append(f"not read      {names}{f' and {more} more' if more > 0 else ''}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them."""
        return asdict(self) | {
            key: list(getattr(self, key)) for key in ("ignored", "example", "example_mask")
        }


def count_targets(rows: Rows) -> int:
    """Return how many tokens of the rows the loss counts in one epoch."""
    if isinstance(rows, WindowRows):
        return len(rows.tokens) - 1
    return sum(int(part.targets.sum()) for part in _parts(rows))


def start_share(rows: Rows, start: int | None) -> float:
    """Return the share of the rows whose first real token has the id `start`."""
    found = 0
    for part in _parts(rows):
        first = 0 if part.segments is None else np.argmax(part.segments > 0, axis=1)
        found += int((part.tokens[np.arange(len(part)), first] == start).sum())
    return found / len(rows)


def end_share(rows: Rows, ends: Sequence[int]) -> float:
    """Return the share of the rows whose last target is one of the ids `ends`."""
    found = 0
    for part in _parts(rows):
        targets = part.targets
        last = targets.shape[1] - 1 - np.argmax(targets[:, ::-1], axis=1)
        labels = part.tokens[np.arange(len(part)), last]
        found += int((np.isin(labels, list(ends)) & targets.any(axis=1)).sum())
    return found / len(rows)


def filled_share(rows: Rows) -> float:
    """Return the share of the positions that hold a token and not padding."""
    filled = positions = 0
    for part in _parts(rows):
        positions += part.tokens.size
        filled += part.tokens.size if part.segments is None else int((part.segments > 0).sum())
    return filled / positions


def first_row(rows: Rows, processor: TextProcessor | None) -> dict[str, Any]:
    """Return the report's three fields on the first row, padding left out."""
    row = next(_parts(rows)).select(np.array([0]))
    real = slice(None) if row.segments is None else row.segments[0] > 0
    tokens, targets = row.tokens[0][real].tolist(), row.targets[0][real].tolist()
    texts = []
    for trained, run in groupby(zip(targets, tokens, strict=True), key=lambda pair: pair[0]):
        ids = [token for _, token in run]
        text = str(ids) if processor is None else processor.decode(ids, skip_special_tokens=False)
        texts.append(text if trained else f"[[{text}]]")
    return {
        "example": tuple(tokens),
        "example_mask": tuple(targets),
        "example_text": "".join(texts),
    }


def _parts(rows: Rows):
    """Give the rows in bounded parts, as `TokenRows`."""
    for start in range(0, len(rows), CHUNK_ROWS):
        batch = rows.take(np.arange(start, min(start + CHUNK_ROWS, len(rows))))
        yield TokenRows(batch["text"], batch.get("segments"), batch.get("weights"))


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def shortened(text: str) -> str:
    """Return `text` on one line, its middle left out when it is long."""
    half = EXAMPLE_CHARACTERS // 2
    if len(text) > EXAMPLE_CHARACTERS:
        return f"{_visible(text[:half])} ... {_visible(text[-half:])}"
    return _visible(text)


def _visible(text: str) -> str:
    """Return `text` with what does not print escaped: the text may hold control codes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
