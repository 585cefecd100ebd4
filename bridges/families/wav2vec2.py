"""wav2vec 2.0: a sound's samples through convolutions, an encoder, and a letter for each place."""

from __future__ import annotations

import math
from typing import Any

from bridges.config import Keys, read_activation
from bridges.family import Family, NotNative
from bridges.image_encoders import read_counts, same_lengths, unwrapped
from bridges.moves import TAPS
from bridges.table import Row
from bridges.text_encoders import layer_rows, map_rows, norm_rows
from dew.nn.backbones.waveform_encoder import WaveformEncoder

HARMLESS = """
hidden_dropout activation_dropout attention_dropout feat_proj_dropout feat_quantizer_dropout
final_dropout layerdrop hidden_dropout_prob attention_probs_dropout_prob
apply_spec_augment mask_time_length mask_time_min_masks mask_feature_length mask_feature_min_masks
mask_channel_length mask_channel_min_space mask_channel_other mask_channel_prob
mask_channel_selection mask_time_min_space mask_time_other mask_time_selection
no_mask_channel_overlap no_mask_time_overlap num_codevectors_per_group num_codevector_groups
contrastive_logits_temperature num_negatives codevector_dim proj_codevector_dim
diversity_loss_weight ctc_loss_reduction ctc_zero_infinity use_weighted_layer_sum
classifier_proj_size tdnn_dim tdnn_kernel tdnn_dilation xvector_output_dim adapter_kernel_size
adapter_stride num_adapter_layers output_hidden_size
"""
NAMES = {
    "query": "attention.q_proj",
    "key": "attention.k_proj",
    "value": "attention.v_proj",
    "out": "attention.out_proj",
    "up": "feed_forward.intermediate_dense",
    "down": "feed_forward.output_dense",
}
NORMS = {"attention_norm": "layer_norm", "mlp_norm": "final_layer_norm"}
PLACES = "wav2vec2.encoder.pos_conv_embed.conv."
KERNEL = "parametrizations.weight.original"
LARGEST_FACTOR = 1 << 24


def model(keys: Keys) -> WaveformEncoder:
    """Return the model that a wav2vec 2.0 config describes; defaults are `Wav2Vec2Config`'s."""
    hidden, heads = keys.integer("hidden_size", 768), keys.integer("num_attention_heads", 12)
    groups = keys.integer("num_conv_pos_embedding_groups", 16)
    for key, parts in (("num_attention_heads", heads), ("num_conv_pos_embedding_groups", groups)):
        if hidden % parts:
            keys.clash("hidden_size", f"not divisible by {key} {parts}")
    if keys.flag("add_adapter", False) or keys.values.get("adapter_attn_dim") is not None:
        raise NotNative(f"{keys.where}: adapters stand behind the layers or in them")
    keys.only("adapter_attn_dim")
    norm = keys.text("feat_extract_norm", "group")
    if norm not in ("group", "layer"):
        keys.refuse("feat_extract_norm", "expected group or layer")
    augmented = [keys.number("mask_time_prob", 0.05), keys.number("mask_feature_prob", 0.0)]
    return WaveformEncoder(
        emb_features=hidden,
        num_layers=keys.integer("num_hidden_layers", 12),
        num_heads=heads,
        mlp_features=keys.integer("intermediate_size", 3072),
        **_convolutions(keys),
        convolution_norm="channel" if norm == "group" else "layer",
        convolution_bias=keys.flag("conv_bias", False),
        convolution_activation=read_activation(keys, "feat_extract_activation", "gelu"),
        place_size=keys.integer("num_conv_pos_embeddings", 128),
        place_groups=groups,
        norm_first=keys.flag("do_stable_layer_norm", False),
        norm_epsilon=keys.number("layer_norm_eps", 1e-5, low=0.0),
        activation=read_activation(keys, "hidden_act", "gelu"),
        masked=any(probability > 0 for probability in augmented),
        labels=keys.integer("vocab_size", 32),
    )


def _convolutions(keys: Keys) -> dict[str, Any]:
    """Return the fields of the convolutions."""
    widths = read_counts(keys, "conv_dim", (512,) * 7)
    sizes = read_counts(keys, "conv_kernel", (10, 3, 3, 3, 3, 2, 2))
    strides = read_counts(keys, "conv_stride", (5, 2, 2, 2, 2, 2, 2))
    same_lengths(keys, {"conv_dim": widths, "conv_kernel": sizes, "conv_stride": strides}, None)
    count = keys.integer("num_feat_extract_layers", len(widths))
    if count != len(widths):
        keys.clash("num_feat_extract_layers", f"conv_dim has {len(widths)}")
    if math.prod(strides) > LARGEST_FACTOR:
        keys.refuse("conv_stride", f"expected a product of at most {LARGEST_FACTOR}")
    return {"widths": widths, "sizes": sizes, "strides": strides}


def rows(model: WaveformEncoder) -> tuple[Row, ...]:
    """Return wav2vec 2.0's tensors (theirs) and dew's leaves (ours)."""
    base = "wav2vec2."
    table = [
        *norm_rows(f"{base}feature_projection.layer_norm", "read_norm"),
        *map_rows(f"{base}feature_projection.projection", "read"),
        Row(f"{PLACES}{KERNEL}0", "places/scale", unwrapped(2)),
        Row(f"{PLACES}{KERNEL}1", "places/kernel", TAPS),
        Row(f"{PLACES}bias", "places/bias"),
        *norm_rows(f"{base}encoder.layer_norm", "norm"),
        *layer_rows(f"{base}encoder.layers.{{layer}}.", model.num_heads, NAMES, NORMS),
    ]
    for number in range(len(model.widths)):
        theirs = f"{base}feature_extractor.conv_layers.{number}."
        table.append(Row(f"{theirs}conv.weight", f"convolutions_{number}/kernel", TAPS))
        if model.convolution_bias:
            table.append(Row(f"{theirs}conv.bias", f"convolutions_{number}/bias"))
        if number < model.normed:
            table += norm_rows(f"{theirs}layer_norm", f"convolution_norms_{number}")
    if model.masked:
        table.append(Row(f"{base}masked_spec_embed", "masked_embed"))
    if model.head:
        table += map_rows("lm_head", "top")
    return tuple(table)


FAMILY = Family(
    model_type="wav2vec2",
    architectures=("Wav2Vec2ForCTC",),
    model=model,
    rows=rows,
    base_prefix="wav2vec2.",
    embedding="wav2vec2.feature_projection.projection.weight",
    heads={"Wav2Vec2ForCTC": "speech", "Wav2Vec2Model": ""},
    head_names=(r"lm_head\..*", r"(quantizer|project_hid|project_q)\..*"),
    spare={"masked": r"wav2vec2\.masked_spec_embed"},
    spellings={
        r"(pos_conv_embed\.conv)\.weight_g$": rf"\1.{KERNEL}0",
        r"(pos_conv_embed\.conv)\.weight_v$": rf"\1.{KERNEL}1",
    },
    harmless=frozenset(HARMLESS.split()),
)
"""The family that `model_type: wav2vec2` names."""
