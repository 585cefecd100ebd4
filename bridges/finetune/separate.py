"""Rows for a model without a document mask: each piece of a document in a row of its own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class PieceRows:
    """The pieces of packed rows, each padded at the right when it is taken; see `dew.data.Rows`.

    Args:
        packed: the `TokenRows` that hold them.
        row: int [N], the packed row of each piece.
        start: int [N], its first column there.
        length: int [N], its tokens.
        width: L+1, the tokens of a row.
    """

    packed: Any
    row: np.ndarray
    start: np.ndarray
    length: np.ndarray
    width: int

    @property
    def fingerprint(self) -> str:
        """A hash of the rows' contents, which follow from the packed ones."""
        text = f"{self.packed.fingerprint} one piece a row of {self.width}"
        return hashlib.sha256(text.encode()).hexdigest()

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self.row)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return `text`, `segments` and where there are any `weights`, each [B, L+1].

        Raises:
            InputRefused: an index outside 0 to N - 1.
        """
        from dew.data.rows import check_indices

        check_indices(indices, len(self))
        places = np.arange(self.width)
        inside = places < self.length[indices, None]
        last = self.packed.tokens.shape[1] - 1
        columns = np.minimum(self.start[indices, None] + places, last)
        fields = {"text": self.packed.tokens, "weights": self.packed.weights}
        out = {
            name: np.where(inside, field[self.row[indices, None], columns], 0).astype(field.dtype)
            for name, field in fields.items()
            if field is not None
        }
        return {**out, "segments": inside.astype(np.int32)}


def one_document_a_row(data: Any, processor: Any, *, seed: int) -> Any:
    """Return a packed `TextDataset` with its pieces in rows of their own, no longer than needed.

    A document that is longer than a row keeps all its pieces, as packing cut them. Rows that know
    no documents, such as the windows of a file of token ids, stay as they are.

    Args:
        data: from `bridges.dataset` with `pack=True`.
        processor: the tokenizer, for the report.
        seed: of the order of the rows.
    """
    from bridges.data.data_report import end_share, filled_share, first_row, start_share
    from dew.data import RowStream, TokenRows, finite_batches

    if not isinstance(data.rows, TokenRows) or data.rows.segments is None:
        return data
    parts = [data.rows, *([] if data.eval_rows is None else [data.eval_rows])]
    pieces = [_pieces(part.segments) for part in parts]
    width = max(int(length.max()) for _, _, length in pieces)
    rows, *held_out = (
        PieceRows(part, *found, width) for part, found in zip(parts, pieces, strict=True)
    )
    eval_rows = held_out[0] if held_out else None
    report = replace(
        data.report,
        rows=len(rows),
        seq_len=width - 1,
        filled=filled_share(rows),
        start_share=start_share(rows, processor.bos_token_id if processor else None),
        end_share=end_share(rows, processor.eos_token_ids if processor else ()),
        validation_rows=0 if eval_rows is None else len(eval_rows),
        fingerprint=rows.fingerprint,
        **first_row(rows, processor),
    )
    return replace(
        data,
        train=partial(RowStream, rows, batch=data.batch, seed=seed),
        val=None if eval_rows is None else partial(finite_batches, eval_rows, batch=data.batch),
        records=len(rows),
        rows=rows,
        eval_rows=eval_rows,
        report=report,
    )


def _pieces(segments: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the row, the first column and the tokens of each piece of segments [N, L+1]."""
    begins = segments != 0
    begins[:, 1:] &= segments[:, 1:] != segments[:, :-1]
    row, start = np.nonzero(begins)
    number = np.cumsum(begins)[(segments != 0).ravel()]
    return row, start, np.bincount(number)[1:]
