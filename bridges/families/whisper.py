"""Whisper: a spectrogram of 30 seconds through two convolutions, pre-norm layers on both sides."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.families.bart import layer_rows, read_sizes
from bridges.family import Family
from bridges.moves import TAPS
from bridges.table import Row
from bridges.text_encoders import norm_rows
from dew.nn.backbones.speech_to_text import SpeechToText

HARMLESS = """
attention_dropout activation_dropout dropout init_std encoder_layerdrop decoder_layerdrop
num_hidden_layers use_weighted_layer_sum classifier_proj_size median_filter_width scale_embedding
apply_spec_augment mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob
mask_feature_length mask_feature_min_masks forced_decoder_ids
"""
DEFAULTS = {
    "vocab_size": 51865,
    "d_model": 384,
    **{f"{side}_layers": 4 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 6 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 1536 for side in ("encoder", "decoder")},
}


def model(keys: Keys) -> SpeechToText:
    """Return the model that a Whisper config describes; defaults are `WhisperConfig`'s.

    `scale_embedding` is not followed, since transformers' class does not follow it either.
    """
    return SpeechToText(
        **read_sizes(keys, **DEFAULTS),
        max_seq_len=keys.integer("max_target_positions", 448),
        source_positions=keys.integer("max_source_positions", 1500),
        bands=keys.integer("num_mel_bins", 80),
        activation=read_activation(keys, "activation_function", "gelu"),
        norm_places="before",
        final_norm=True,
        key_bias=False,
        tied_head=keys.flag("tie_word_embeddings", True),
    )


def rows(model: SpeechToText) -> tuple[Row, ...]:
    """Return Whisper's tensors (theirs) and dew's leaves (ours)."""
    table = [Row("model.decoder.embed_tokens.weight", "embed/table")]
    for side in ("encoder", "decoder"):
        table += layer_rows(model, side)
        positions = f"model.{side}.embed_positions.weight"
        table.append(Row(positions, f"{side}_position_embed/table"))
        table += norm_rows(f"model.{side}.layer_norm", f"{side}_final_norm")
    for theirs, ours in (("conv1", "front_first"), ("conv2", "front_second")):
        table += [
            Row(f"model.encoder.{theirs}.weight", f"{ours}/kernel", TAPS),
            Row(f"model.encoder.{theirs}.bias", f"{ours}/bias"),
        ]
    if model.has_own_table:
        table.append(Row("proj_out.weight", "output/table"))
    return tuple(table)


FAMILY = Family(
    model_type="whisper",
    architectures=("WhisperForConditionalGeneration",),
    model=model,
    rows=rows,
    base_prefix="model.",
    embedding="model.decoder.embed_tokens.weight",
    head="proj_out.weight",
    tied_default=True,
    heads={"WhisperForConditionalGeneration": "speech", "WhisperModel": ""},
    head_names=(r"proj_out\.weight",),
    harmless=frozenset(HARMLESS.split()),
    answers=True,
)
"""The family that `model_type: whisper` names."""
