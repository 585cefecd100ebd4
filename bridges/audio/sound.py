"""Sounds as mono float32 samples at one rate: files, or arrays with the rate they were taken at."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bridges.files.regular_file import LFS_POINTER, open_regular, shown_path
from dew.errors import InputRefused, shown

FORMATS = ("WAV", "FLAC", "OGG", "AIFF", "MP3", "WAVEX", "RF64")
SECONDS_LIMIT = 3600.0
SAMPLES_LIMIT = 1 << 29
"""The most samples of all channels that are decoded: an hour of 48 kHz stereo is 0.64 of it."""
LOWEST_RATE, HIGHEST_RATE = 1_000, 768_000
BLOCK = 1 << 16
# How libsndfile's log tells that a WAV's data ends before its header says.
CLAIM = re.compile(r"^data : (\d+) \(should be (\d+)\)", re.MULTILINE)


def read_sound(
    path: str | os.PathLike[str], rate: int, *, seconds_limit: float = SECONDS_LIMIT
) -> NDArray[np.float32]:
    """Return a sound file's samples, its channels averaged; a block at a time is decoded.

    Args:
        path: WAV, FLAC, OGG, AIFF or MP3 by content, whatever the name says.
        rate: samples a second that are wanted; another rate is resampled.
        seconds_limit: the longest sound that is read; a longer one is refused from its header.

    Returns:
        float32 [samples], full scale at 1.

    Raises:
        InputRefused: no such file, another format, cut off, longer than the limit, more than 2^29
            samples of all channels, a rate outside 1,000 to 768,000, samples that are not finite,
            or no soundfile to read it with.

    Source: libsndfile by soundfile 0.14, resampled by soxr 1.1 at its high quality.
    """
    path = Path(path)
    with open_regular(path) as file:
        return _decoded(file, shown_path(path), rate, seconds_limit)


def _decoded(file: BinaryIO, where: str, rate: int, seconds_limit: float) -> NDArray[np.float32]:
    """Return the samples of an open file; see `read_sound`."""
    soundfile = _soundfile(where)
    beginning = file.read(len(LFS_POINTER))
    if beginning == LFS_POINTER:
        raise InputRefused(
            f"{where}: found a Git LFS pointer, not the file itself. Run `git lfs pull`."
        )
    file.seek(0)
    try:
        sound = soundfile.SoundFile(file)
    except Exception as error:  # each format has errors of its own
        raise InputRefused(
            f"{where}: not a sound that can be read ({_words(error)}). Expected one of "
            f"{', '.join(FORMATS[:5])}; convert it."
        ) from None
    with sound:
        _check_header(sound, where, seconds_limit)
        blocks = _at_rate(_blocks(sound, where), sound.samplerate, rate, where)
        return np.concatenate(list(blocks))


def as_sounds(values: Any, rate: int, given: int | None) -> list[NDArray[np.float32]]:
    """Return one sound or several as a list of float32 [samples] at `rate`.

    Args:
        values: a sound as `as_sound` takes it, a list or tuple of them, or an array
            [N, samples].
        rate: samples a second that are wanted.
        given: the rate that samples were taken at.

    Raises:
        InputRefused: see `as_sound`; no sound at all.
    """
    several = isinstance(values, np.ndarray) and values.ndim == 2
    if isinstance(values, list | tuple):
        several = not values or not isinstance(values[0], int | float | np.number)
    rows = [as_sound(value, rate, given) for value in (values if several else [values])]
    if not rows:
        raise InputRefused("no sounds; expected at least one")
    return rows


def as_sound(value: Any, rate: int, given: int | None) -> NDArray[np.float32]:
    """Return a sound of any kind as float32 [samples] at `rate`.

    Args:
        value: a path, a file's bytes, or samples [samples] or a list of numbers.
        rate: samples a second that are wanted.
        given: the rate that the samples were taken at; a file says its own.

    Raises:
        InputRefused: see `read_sound`; samples without a rate, or that are no such array.
    """
    if isinstance(value, str | os.PathLike):
        return read_sound(value, rate)
    if isinstance(value, bytes | bytearray):
        where = f"the sound of {len(value)} bytes"
        return _decoded(io.BytesIO(value), where, rate, SECONDS_LIMIT)
    samples = np.asarray(value)
    if samples.ndim != 1 or not samples.size or samples.dtype.kind not in "fiu":
        raise InputRefused(
            f"a sound {samples.dtype} {list(samples.shape)}; expected a path, or samples "
            "[samples] of one channel, at least one"
        )
    if samples.dtype.kind != "f":
        raise InputRefused(
            f"samples of {samples.dtype}; expected floating ones with full scale at 1. Divide "
            f"them by {np.iinfo(samples.dtype).max + 1}"
        )
    if given is None:
        raise InputRefused(
            f"samples without their rate; expected sampling_rate, which is {rate} for this model "
            "(other rates are resampled)"
        )
    if len(samples) > SECONDS_LIMIT * max(given, 1):
        raise InputRefused(
            f"a sound of {len(samples) / max(given, 1):.0f} s; expected at most "
            f"{SECONDS_LIMIT:.0f}. Cut it into parts"
        )
    block = samples.astype(np.float32)
    return np.concatenate(list(_at_rate(iter([block]), given, rate, "the sound")))


def _check_header(sound: Any, where: str, seconds_limit: float) -> None:
    """Refuse a sound by what its header says, before memory is taken for it."""
    rate, frames = sound.samplerate, sound.frames
    if sound.format not in FORMATS:
        raise InputRefused(
            f"{where}: a {shown(sound.format)} file. Expected one of {', '.join(FORMATS[:5])}; "
            "convert it."
        )
    _check_rate(rate, where)
    if not 0 < frames <= seconds_limit * rate:
        raise InputRefused(
            f"{where}: {frames} samples at {rate} a second are {frames / rate:.0f} s. Expected "
            f"more than 0 and at most {seconds_limit:.0f} s; cut it into parts."
        )
    if frames * sound.channels > SAMPLES_LIMIT:
        raise InputRefused(
            f"{where}: {frames} samples of {sound.channels} channels are more than "
            f"{SAMPLES_LIMIT}. Resample it to {LOWEST_RATE} to 48000 a second, or cut it into "
            "parts."
        )
    claim = CLAIM.search(sound.extra_info)
    if claim is not None:
        warnings.warn(
            f"{where}: the header claims {claim[1]} bytes of samples, {claim[2]} are there, which "
            "are read (a stream, or cut off)",
            stacklevel=3,
        )


def _blocks(sound: Any, where: str) -> Iterator[NDArray[np.float32]]:
    """Yield the mean of the channels, a block at a time."""
    found, frames = 0, max(BLOCK // sound.channels, 1)
    while True:
        try:
            block = sound.read(frames, dtype="float32", always_2d=True)
        except Exception as error:  # each decoder has errors of its own
            raise InputRefused(
                f"{where}: cannot be decoded ({_words(error)}). Cut off or broken? Expected a "
                "whole sound file; get it again."
            ) from None
        if not len(block):
            break
        found += len(block)
        yield block[:, 0] if block.shape[1] == 1 else block.mean(1, dtype=np.float32)
    if found != sound.frames:
        raise InputRefused(
            f"{where}: cut off: its header says {sound.frames} samples, {found} are there. "
            "Expected a whole sound file; get it again."
        )


def _words(error: Exception) -> str:
    """Return what libsndfile says, without the address of the file object."""
    return shown(getattr(error, "error_string", str(error)))[1:-1]


def _check_rate(rate: int, where: str) -> None:
    if type(rate) is not int or not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise InputRefused(
            f"{where}: {shown(rate)} samples a second. Expected {LOWEST_RATE} to {HIGHEST_RATE}; "
            "check what recorded it."
        )


def _at_rate(
    blocks: Iterator[NDArray[np.float32]], taken: int, rate: int, where: str
) -> Iterator[NDArray[np.float32]]:
    """Yield blocks at the rate that is wanted, once their samples are known to be numbers."""
    _check_rate(taken, where)
    stream = None if taken == rate else _stream(taken, rate, where)
    for block in blocks:
        wrong = len(block) - int(np.isfinite(block).sum())
        if wrong:
            raise InputRefused(
                f"{where}: {wrong} of {len(block)} samples are NaN or infinite. Expected numbers "
                "with full scale at 1; record or convert it again."
            )
        yield block if stream is None else stream.resample_chunk(block)
    if stream is not None:
        yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def _stream(taken: int, rate: int, where: str) -> Any:
    """Return what resamples one block after another."""
    try:
        import soxr
    except ImportError:
        raise InputRefused(
            f"{where}: {taken} samples a second, the model wants {rate}. Resampling needs soxr: "
            'pip install "dew[audio]"'
        ) from None
    return soxr.ResampleStream(taken, rate, 1, dtype="float32")


def _soundfile(where: str) -> Any:
    try:
        import soundfile
    except (ImportError, OSError):
        raise InputRefused(
            f'{where}: sound files need soundfile to be read: pip install "dew[audio]"'
        ) from None
    return soundfile
