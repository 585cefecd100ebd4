"""Whisper's features: the logarithm of the power in mel bands, of 30 s of sound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridges.audio.sound import as_sound, as_sounds

FLOOR = 1e-10
DECADES = 8.0
LINEAR_HERTZ, LINEAR_MELS, LOG_STEP = 1000.0, 15.0, 27.0 / np.log(6.4)
HIGHEST_HERTZ = 8000.0
BLOCK = 3000
"""Frames that are computed at a time: an hour's at once would take gigabytes."""


@dataclass(frozen=True)
class LogMel:
    """A checkpoint's preparation of sounds for an encoder of spectrograms.

    Attributes:
        bands: of the mel scale; 80, or 128 for the third large model.
        rate: samples a second.
        hop: samples from one frame to the next.
        window: samples of a frame.
        seconds: that every sound is cut or padded to.
        files: the files that an export writes, by name.
    """

    bands: int = 80
    rate: int = 16_000
    hop: int = 160
    window: int = 400
    seconds: int = 30
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def __call__(
        self,
        sounds: Any,
        *,
        sampling_rate: int | None = None,
        return_attention_mask: bool = False,
        whole: bool = False,
    ) -> dict[str, NDArray[Any]]:
        """Return what the model's call takes of sounds.

        Args:
            sounds: one sound or a list of them, each a path or float samples [samples] of one
                channel with full scale at 1.
            sampling_rate: of the samples; a file says its own. Another rate than the model's is
                resampled.
            return_attention_mask: give it too.
            whole: take sounds longer than a window as they are, padded to the longest.

        Returns:
            `input_features`, float32 [N, bands, frames]; with the mask `attention_mask`, int32
            [N, frames], 1 where a frame begins within the sound.

        Raises:
            InputRefused: see `bridges.audio.sound.read_sound`.

        Source: Radford et al. 2022, arXiv:2212.04356; transformers 5.24's
            WhisperFeatureExtractor, within 1e-5.
        """
        rows = as_sounds(sounds, self.rate, sampling_rate)
        length = self.seconds * self.rate
        if whole and max(map(len, rows)) > length:
            length = max(map(len, rows))
        features = []
        for row in rows:
            padded = np.zeros(length, np.float32)
            padded[: len(row)] = row[:length]
            features.append(self._features(padded))
        found: dict[str, NDArray[Any]] = {"input_features": np.stack(features)}
        if return_attention_mask:
            starts = np.arange(length // self.hop) * self.hop
            lengths = np.array([min(len(row), length) for row in rows])
            found["attention_mask"] = (starts[None] < lengths[:, None]).astype(np.int32)
        return found

    def samples(self, sound: Any, *, sampling_rate: int | None = None) -> NDArray[np.float32]:
        """Return a sound of any kind as samples at the model's rate; see `as_sound`."""
        return as_sound(sound, self.rate, sampling_rate)

    def _features(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [bands, frames] of whole samples; frames are centred, the last one dropped."""
        around = self.window // 2
        padded = np.pad(samples.astype(np.float64), around, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.window)[:: self.hop][:-1]
        # The periodic Hann window.
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window)
        filters = mel_filters(self.bands, self.window, self.rate)
        mel = [
            np.abs(np.fft.rfft(frames[first : first + BLOCK] * window)) ** 2 @ filters
            for first in range(0, len(frames), BLOCK)
        ]
        logarithm = np.log10(np.maximum(np.concatenate(mel).T, FLOOR))
        logarithm = np.maximum(logarithm, logarithm.max() - DECADES)
        return ((logarithm + 4.0) / 4.0).astype(np.float32)


@lru_cache(maxsize=8)
def mel_filters(bands: int, window: int, rate: int) -> NDArray[np.float64]:
    """Return the weights [window / 2 + 1, bands] of triangles that are even on the mel scale.

    Each triangle has the same area, and they go from 0 to 8,000 Hz.

    Args:
        bands: how many.
        window: samples of a frame.
        rate: samples a second.

    Source: Slaney 1998, Auditory Toolbox: linear to 1,000 Hz, then logarithmic.
    """
    places = np.linspace(0, rate // 2, window // 2 + 1)
    edges = _hertz(np.linspace(0.0, _mels(HIGHEST_HERTZ), bands + 2))
    distance = edges[None] - places[:, None]
    rising = -distance[:, :-2] / np.diff(edges)[:-1]
    falling = distance[:, 2:] / np.diff(edges)[1:]
    return np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))


def _mels(hertz: float) -> float:
    """Return the mels of a frequency above 1,000 Hz."""
    return LINEAR_MELS + np.log(hertz / LINEAR_HERTZ) * LOG_STEP


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the frequencies of mels."""
    above = LINEAR_HERTZ * np.exp((mels - LINEAR_MELS) / LOG_STEP)
    return np.where(mels >= LINEAR_MELS, above, mels * LINEAR_HERTZ / LINEAR_MELS)
