"""Which preparation of sounds a checkpoint's config names, and its settings."""

from __future__ import annotations

from collections.abc import Mapping

from bridges.audio.log_mel import LogMel
from bridges.audio.waveform import Waveform
from bridges.config import Keys

WHISPER, WAV2VEC2 = "WhisperFeatureExtractor", "Wav2Vec2FeatureExtractor"
MODELS = {"whisper": WHISPER, "wav2vec2": WAV2VEC2, "hubert": WAV2VEC2, "wavlm": WAV2VEC2}


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
    if name == WHISPER:
        keys.only("padding_side", "right")
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
    if name == WAV2VEC2:
        keys.only("padding_side", "right")
        keys.only("feature_size", 1)
        return Waveform(
            rate=keys.integer("sampling_rate", 16_000),
            normalise=keys.flag("do_normalize", True),
            padding_value=keys.number("padding_value", 0.0),
            mask=keys.flag("return_attention_mask", False),
            files=files,
        )
    return None
