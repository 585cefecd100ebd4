"""Sounds cut into pieces that overlap, so that one of any length is heard in many short ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dew.errors import InputRefused, shown
from dew.inference.pipelines.sounds import Sound

SHARE = 6
"""A piece shares a sixth with each neighbour where nobody says how much."""


class Piece(NamedTuple):
    """A piece of a sound.

    `sound` says which one it is of; `samples` are float32 [S]; `stride` holds its length and how
    many samples of its left and right belong to its neighbours, None where the sound is whole.
    """

    sound: int
    samples: NDArray[np.float32]
    stride: tuple[int, int, int] | None = None


def pieces_of(
    sound: Sound, place: int, options: Mapping[str, Any], step: int, rate: int
) -> list[Piece]:
    """Return the pieces of a sound.

    Args:
        sound: the sound.
        place: which one it is of a call's.
        options: `chunk_length_s` and `stride_length_s`.
        step: samples that pieces and strides are multiples of.
        rate: samples a second.

    Raises:
        InputRefused: lengths that are none, or pieces that are all stride.
    """
    length = options["chunk_length_s"]
    if not length:
        stride = None if sound.stride is None else (len(sound.samples), *sound.stride)
        return [Piece(place, sound.samples, stride)]
    strides = options["stride_length_s"]
    strides = length / SHARE if strides is None else strides
    both = strides if isinstance(strides, list | tuple) else (strides, strides)
    wide, left, right = (_samples(seconds, step, rate) for seconds in (length, *both))
    if wide <= left + right:
        raise InputRefused(
            f"chunk_length_s is {shown(length)} and stride_length_s {shown(strides)}: nothing is "
            "left of a piece between its strides. Raise the one or lower the other"
        )
    pieces, total = [], len(sound.samples)
    for first in range(0, total, wide - left - right):
        part, last = sound.samples[first : first + wide], first + wide >= total
        stride = (len(part), left if first else 0, 0 if last else right)
        if len(part) > stride[1]:
            pieces.append(Piece(place, part, stride))
        if last:
            break
    return pieces


def _samples(seconds: Any, step: int, rate: int) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
        raise InputRefused(f"a piece or a stride of {shown(seconds)} s; expected a number from 0")
    return round(seconds * rate / step) * step
