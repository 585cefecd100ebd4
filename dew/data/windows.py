"""Windows of one long stream of tokens, each token but the first predicted exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from dew.data.dataset import Dataset
from dew.data.rows import check_indices, hashed
from dew.data.stream import RowStream, finite_batches
from dew.data.token_files import token_stream
from dew.errors import InputRefused


@dataclass(frozen=True, eq=False)
class WindowRows:
    """Rows cut from a token stream when they are asked for: window i is [i S, i S + L + 1).

    By default S is L and neighbours share one token: the last target of a window is the first
    input of the next. With a smaller stride they overlap, and a target that an earlier window
    holds has weight 0, so that the others are scored given at least L - S + 1 tokens. A short
    last window is filled with token 0 at segment 0.

    Args:
        tokens: integers [T], T >= 2, in memory or a memory map; ids below 2**31.
        seq_len: L, the predicted positions of a row, at least 1.
        stride: S, how many targets each window after the first adds, 1 to L; None for L.

    Raises:
        InputRefused: fewer than two tokens, other than one axis, not integers, L below 1, or a
            stride outside 1 to L.
    """

    tokens: np.ndarray
    seq_len: int
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.seq_len < 1:
            raise InputRefused(f"seq_len: found {self.seq_len}, expected at least 1.")
        if self.stride is not None and not 1 <= self.stride <= self.seq_len:
            raise InputRefused(
                f"stride: found {self.stride}, expected 1 to seq_len {self.seq_len}: a longer one "
                "skips targets."
            )
        if self.tokens.ndim != 1 or not np.issubdtype(self.tokens.dtype, np.integer):
            raise InputRefused(
                f"token stream: found {self.tokens.dtype} {self.tokens.shape}, expected whole "
                "numbers on one axis."
            )
        if len(self.tokens) < 2:
            raise InputRefused(
                f"token stream: {len(self.tokens)} tokens hold nothing to predict; "
                "at least two are needed."
            )

    def __len__(self) -> int:
        """Return the number of windows, 1 + ceil((T - 1 - L) / S), or 1 if all fits in one."""
        return 1 + max(0, -(-(len(self.tokens) - 1 - self.seq_len) // self._step))

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return `text` [B, L+1], and what of the following the windows need.

        `segments` where the last window of the stream is short, `weights` where windows overlap.

        Raises:
            InputRefused: an index outside the windows.
        """
        check_indices(indices, len(self))
        columns = np.arange(self.seq_len + 1)
        places = indices[:, None] * self._step + columns
        inside = places < len(self.tokens)
        text = self.tokens[np.minimum(places, len(self.tokens) - 1)].astype(np.int32)
        batch = {"text": np.where(inside, text, 0)}
        if (len(self) - 1) * self._step + self.seq_len + 1 > len(self.tokens):
            batch["segments"] = inside.astype(np.int32)
        if self._step < self.seq_len:
            new = (indices[:, None] == 0) | (columns > self.seq_len - self._step)
            batch["weights"] = (new & inside).astype(np.float32)
        return batch

    @property
    def _step(self) -> int:
        return self.seq_len if self.stride is None else self.stride

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the stream, the window length and the stride."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        overlap = f" every {self._step}" if self._step < self.seq_len else ""
        return hashed({f"windows of {self.seq_len}{overlap}": self.tokens})


@dataclass(frozen=True)
class TokenWindows:
    """Settings of a dataset that reads windows of a token stream; `datasets["token_windows"]`.

    Args:
        seq_len: predicted positions of a row, L.
        seed: shuffles the training windows.
        train: the file that `open` trains on: `.npy` or `.bin` of token ids, or a `.txt`, whose
            bytes are its tokens.
        val: the file it validates on, or None.
        dtype: of ids in a `.bin`: uint16, uint32 or int32.
        stride: how many targets each validation window after the first adds, 1 to L, so that each
            is scored given more than L - stride tokens; None for L. Training windows never overlap.
    """

    seq_len: int
    seed: int = 0
    train: str | None = None
    val: str | None = None
    dtype: str = "uint16"
    stride: int | None = None

    def open(self, *, batch: int, vocab_size: int | None = None) -> Dataset:
        """Return the dataset over the files.

        Args:
            batch: rows of a global batch.
            vocab_size: of the model; ids from here on are refused.

        Raises:
            InputRefused: no training file is named, or one cannot be used.
        """
        if self.train is None:
            raise InputRefused("token_windows: train is missing: name a .npy, .bin or .txt file")
        named = (self.train, self.val)
        train, val = (
            None if path is None else token_stream(path, dtype=self.dtype, vocab_size=vocab_size)
            for path in named
        )
        assert train is not None
        return self.dataset(train, batch=batch, val=val)

    def dataset(self, tokens: np.ndarray, *, batch: int, val: np.ndarray | None = None) -> Dataset:
        """Return the dataset over `tokens` [T], validated on `val` [T'] where it is given.

        Args:
            tokens: the training stream.
            batch: rows of a global batch.
            val: another stream, read once in order at each validation.

        Raises:
            InputRefused: a stream too short or not of whole numbers, or a stride outside 1 to L
                or without a validation stream.
        """
        if self.stride is not None and val is None:
            raise InputRefused(
                f"token_windows: stride {self.stride} is of the validation windows and val is "
                "missing; name a validation stream or leave stride out"
            )
        rows = WindowRows(np.asarray(tokens), self.seq_len)
        held = None if val is None else WindowRows(np.asarray(val), self.seq_len, self.stride)
        return Dataset(
            train=partial(RowStream, rows, batch=batch, seed=self.seed),
            val=None if held is None else partial(finite_batches, held, batch=batch),
            records=len(rows),
            batch=batch,
        )
