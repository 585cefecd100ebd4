"""Rows of sounds that are decoded for the batch they are in, with the ids of what is said."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bridges.finetune.encoded_rows import Ragged
from bridges.finetune.media import Cell, samples_of, values_of
from bridges.finetune.paired_rows import Shift, coarse_length
from bridges.finetune.row_table import refuse_rows
from dew.data.rows import check_indices
from dew.errors import InputRefused


@dataclass(frozen=True, eq=False)
class SoundRows:
    """What a model that hears trains on; see `dew.data.Rows`.

    Args:
        sounds: where they are.
        samples: how long each is at the processor's rate, int64 [N].
        labels: the ids of each text; padded with what does not count.
        digests: a hash of each sound's file.
        processor: the checkpoint's `LogMel` or `Waveform`.
        shift: the decoder's inputs of the labels, for a model that has one; None gives the samples'
            numbers in their place.
        limit: the most labels of a row, or None.
    """

    sounds: Sequence[Cell]
    samples: np.ndarray
    labels: Ragged
    digests: Sequence[str]
    processor: Any
    shift: Shift | None = None
    limit: int | None = None

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self.sounds)

    @property
    def lengths(self) -> np.ndarray:
        """Samples of each row, int64 [N]."""
        return self.samples

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the files and labels, in hexadecimal."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256("".join(self.digests).encode())
        for values in (self.labels.values, self.labels.offsets):
            digest.update(np.ascontiguousarray(values, "<i8").data)
        return digest.hexdigest()

    def width(self, indices: np.ndarray) -> tuple[int, int]:
        """Return the widths that a batch of these rows is padded to, of samples and of labels."""
        samples = coarse_length(int(self.samples[indices].max(initial=1)))
        labels = int(self.labels.lengths[indices].max(initial=1))
        return samples, coarse_length(labels, self.limit)

    def take(
        self, indices: np.ndarray, width: tuple[int, int] | None = None
    ) -> dict[str, np.ndarray]:
        """Return `labels` and the inputs of the rows: `input_features` or `input_values`.

        Args:
            indices: [B], each 0 to N - 1.
            width: what to pad to; None for those of these rows alone.

        Raises:
            InputRefused: an index outside 0 to N - 1.
        """
        check_indices(indices, len(self))
        wide, written = self.width(indices) if width is None else width
        rate = self.processor.rate
        values = values_of([self.sounds[int(index)] for index in indices])
        sounds = [samples_of(value, rate) for value in values]
        labels = self.labels.padded(indices, written)
        inputs = self.processor(sounds, sampling_rate=rate)
        if self.shift is not None:
            return {**inputs, "labels": labels, "decoder_input_ids": self.shift(labels)}
        padding = {"input_values": getattr(self.processor, "padding_value", 0.0)}
        for name, field in inputs.items():
            room = ((0, 0), (0, wide - field.shape[1]))
            inputs[name] = np.pad(field, room, constant_values=padding.get(name, 0))
        return {**inputs, "labels": labels, "samples": self.samples[indices].astype(np.int32)}


def sound_lengths(sounds: Sequence[Cell], rate: int) -> np.ndarray:
    """Return how many samples each sound has at a rate, int64 [N]; each is decoded once.

    Raises:
        InputRefused: some cannot be decoded; the first ones are named by row.
    """
    lengths, problems = [], []
    for cell in sounds:
        try:
            lengths.append(len(samples_of(values_of([cell])[0], rate)))
        except InputRefused as error:
            problems.append(f"{cell.place}: {error}")
    refuse_rows("data: sounds that cannot be decoded:", problems)
    return np.array(lengths, np.int64)
