"""Tiny configs of models that hear, natively: one for each case and head of a family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WHISPER = {
    "model_type": "whisper",
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "num_mel_bins": 10,
    "max_source_positions": 14,
    "max_target_positions": 40,
    "pad_token_id": 50,
    "bos_token_id": 50,
    "eos_token_id": 50,
    "decoder_start_token_id": 51,
    "begin_suppress_tokens": [3, 50],
}
WAV2VEC2 = {
    "model_type": "wav2vec2",
    "vocab_size": 20,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": [16, 16, 24],
    "conv_stride": [5, 2, 2],
    "conv_kernel": [10, 3, 2],
    "num_conv_pos_embeddings": 11,
    "num_conv_pos_embedding_groups": 4,
}
STABLE = {
    **WAV2VEC2,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    "conv_bias": True,
    "num_conv_pos_embeddings": 8,
    "mask_time_prob": 0.0,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-3,
}
WRITER, BARE, SPELLER, HEARER = (
    {"architectures": [name]}
    for name in (
        *("WhisperForConditionalGeneration", "WhisperModel"),
        *("Wav2Vec2ForCTC", "Wav2Vec2Model"),
    )
)
MODELS: Mapping[str, Mapping[str, Any]] = {
    "whisper": {**WHISPER, **WRITER},
    "whisper bare": {**WHISPER, **BARE},
    "whisper untied": {**WHISPER, **WRITER, "tie_word_embeddings": False},
    "wav2vec2": {**WAV2VEC2, **SPELLER},
    "wav2vec2 bare": {**WAV2VEC2, **HEARER},
    "wav2vec2 stable": {**STABLE, **SPELLER},
    "wav2vec2 stable bare": {**STABLE, **HEARER},
}
"""Name to config.json."""
