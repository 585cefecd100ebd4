"""Sounds of any kind as samples at a model's rate: paths, addresses, bytes, arrays, dicts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dew.errors import InputRefused, shown
from dew.inference.pipelines.fetching import fetched, is_url

RATE, STRIDE = "sampling_rate", "stride"
MOST_CHANNELS = 2


@dataclass(frozen=True)
class Sound:
    """One sound.

    Attributes:
        samples: float32 [S] at the model's rate.
        stride: samples at its left and right that only help to hear the rest, or None.
        beside: what a dict held besides.
    """

    samples: NDArray[np.float32]
    stride: tuple[int, int] | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)


def sound_of(value: Any, processor: Any) -> Sound:
    """Return a sound of any kind.

    Args:
        value: a path; an address beginning with http:// or https://; a file's bytes; float
            samples [S] or [channels, S] at the model's rate; or a dict of `raw` or `array` (such
            samples) and `sampling_rate`, with a `stride` of two numbers of samples, or of `bytes`
            and `path` as a column of files holds them.
        processor: the checkpoint's feature extractor.

    Raises:
        InputRefused: none of these, a file that is no sound, samples whose channels are not known,
            a stride longer than the sound.
    """
    if is_url(value):
        value = fetched(value)
    if isinstance(value, Mapping):
        return _of_mapping(dict(value), processor)
    if isinstance(value, str | bytes | bytearray | os.PathLike):
        return Sound(processor.samples(value))
    return Sound(_samples(value, processor, processor.rate))


def _of_mapping(value: dict[str, Any], processor: Any) -> Sound:
    path = value.pop("path", None)
    if RATE not in value and (value.get("bytes") or path):
        return Sound(processor.samples(value.get("bytes") or path))
    stride, rate = value.pop(STRIDE, None), value.pop(RATE, None)
    raw, array = value.pop("raw", None), value.pop("array", None)
    raw = array if raw is None else raw
    if rate is None or raw is None:
        raise InputRefused(
            f"a dict of {', '.join(map(shown, value)) or 'nothing'}; expected raw (or array), the "
            "samples, and sampling_rate, how many a second"
        )
    samples = _samples(raw, processor, rate)
    if stride is None:
        return Sound(samples, beside=value)
    ratio = 1 if rate == processor.rate else processor.rate / rate
    if sum(stride) > len(samples):
        raise InputRefused(
            f"stride is {shown(stride)}, more than the {len(samples)} samples of the sound; lower "
            "it"
        )
    left, right = (round(part * ratio) for part in stride)
    return Sound(samples, (left, right), value)


def _samples(value: Any, processor: Any, rate: Any) -> NDArray[np.float32]:
    """Return samples of one channel at the model's rate."""
    if not isinstance(value, np.ndarray) and not hasattr(value, "__array__"):
        raise InputRefused(
            f"a sound of type {type(value).__name__}; expected a path, a file's bytes, an array of "
            "float samples, or a dict of raw and sampling_rate"
        )
    samples = np.asarray(value)
    if samples.ndim == 2 and samples.shape[0] > MOST_CHANNELS:
        raise InputRefused(
            f"samples {list(samples.shape)}: axis 0 counts channels, and {samples.shape[0]} are "
            "too many. Transpose [samples, channels], or mix the channels yourself"
        )
    if samples.ndim == 2:
        samples = samples.mean(axis=0)
    return processor.samples(samples, sampling_rate=rate)
