"""Which preparation of sounds a checkpoint's config names, and its settings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from bridges.audio.log_mel import LogMel
from bridges.audio.waveform import Waveform
from bridges.config import Keys
from dew.errors import listed, shown

WHISPER, WAV2VEC2 = "WhisperFeatureExtractor", "Wav2Vec2FeatureExtractor"
MODELS = {"whisper": WHISPER, "wav2vec2": WAV2VEC2, "hubert": WAV2VEC2, "wavlm": WAV2VEC2}


HARMLESS = frozenset(
    [
        "feature_extractor_type",
        "processor_class",
        "return_attention_mask",  # of Whisper, whose call decides
        "mel_filters",  # what the other numbers give
        "n_samples",
        "nb_max_frames",
        "auto_map",
    ]
)


def read_feature_extractor(
    keys: Keys, model_type: str, files: Mapping[str, bytes]
) -> LogMel | Waveform | None:
    """Return the preparation of sounds that a config describes; None for other classes.

    Args:
        keys: of the processor's config.
        model_type: what decides where the config names no class.
        files: the files that the config came in.

    Raises:
        InputRefused: values that are no such settings, or a step that is not computed.
    """
    name = keys.text("feature_extractor_type", None) or MODELS.get(model_type)
    if name not in (WHISPER, WAV2VEC2):
        return None
    keys.only("padding_side", "right")
    found = _log_mel(keys, files) if name == WHISPER else _waveform(keys, files)
    unread = keys.unread(HARMLESS)
    if unread:
        warnings.warn(
            listed(
                f"{keys.where}: keys of the feature extractor that dew does not know and does not "
                "follow:",
                [shown(key)[1:-1] for key in unread],
            ),
            stacklevel=2,
        )
    return found


def _log_mel(keys: Keys, files: Mapping[str, bytes]) -> LogMel:
    keys.only("padding_value", 0)
    keys.only("dither", 0)
    keys.only("do_normalize", False)
    return LogMel(
        bands=keys.integer("feature_size", 80),
        rate=keys.integer("sampling_rate", 16_000),
        hop=keys.integer("hop_length", 160),
        window=keys.integer("n_fft", 400),
        seconds=keys.integer("chunk_length", 30),
        files=files,
    )


def _waveform(keys: Keys, files: Mapping[str, bytes]) -> Waveform:
    keys.only("feature_size", 1)
    return Waveform(
        rate=keys.integer("sampling_rate", 16_000),
        normalise=keys.flag("do_normalize", True),
        padding_value=keys.number("padding_value", 0.0),
        mask=keys.flag("return_attention_mask", False),
        files=files,
    )
