"""wav2vec2's inputs: the samples themselves, to zero mean and unit variance, padded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridges.audio.sound import as_sound, as_sounds

VARIANCE_FLOOR = 1e-7


@dataclass(frozen=True)
class Waveform:
    """A checkpoint's preparation of sounds for an encoder of samples.

    Attributes:
        rate: samples a second.
        normalise: whether each sound is brought to mean 0 and variance 1.
        padding_value: what stands behind shorter sounds.
        mask: whether the model reads an attention mask.
        files: the files that an export writes, by name.
    """

    rate: int = 16_000
    normalise: bool = True
    padding_value: float = 0.0
    mask: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def __call__(
        self,
        sounds: Any,
        *,
        sampling_rate: int | None = None,
        return_attention_mask: bool | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return what the model's call takes of sounds, padded to the longest.

        Args:
            sounds: one sound or a list of them, each a path or float samples [samples] of one
                channel with full scale at 1.
            sampling_rate: of the samples; a file says its own. Another rate than the model's is
                resampled.
            return_attention_mask: None gives it where the checkpoint's model reads it.

        Returns:
            `input_values`, float32 [N, samples]; with the mask `attention_mask`, int32
            [N, samples], 1 where there is sound.

        Raises:
            InputRefused: see `bridges.audio.sound.read_sound`.

        Source: transformers 5.24's Wav2Vec2FeatureExtractor, which it equals bit for bit on each
            sound, and with a mask on a padded batch. Without one transformers' extractor takes
            the padding into mean and variance, so that a sound depends on its neighbours; here,
            as in its pipeline, each sound is brought to variance 1 by itself.
        """
        rows = as_sounds(sounds, self.rate, sampling_rate)
        lengths = np.array([len(row) for row in rows])
        values = np.full((len(rows), lengths.max()), self.padding_value, np.float32)
        for place, row in zip(values, rows, strict=True):
            place[: len(row)] = _normalised(row) if self.normalise else row
        found: dict[str, NDArray[Any]] = {"input_values": values}
        if self.mask if return_attention_mask is None else return_attention_mask:
            found["attention_mask"] = (np.arange(values.shape[1]) < lengths[:, None]).astype(
                np.int32
            )
        return found

    def samples(self, sound: Any, *, sampling_rate: int | None = None) -> NDArray[np.float32]:
        """Return a sound of any kind as samples at the model's rate; see `as_sound`."""
        return as_sound(sound, self.rate, sampling_rate)


def _normalised(row: NDArray[np.float32]) -> NDArray[np.float32]:
    return (row - row.mean()) / np.sqrt(row.var() + VARIANCE_FLOOR)
