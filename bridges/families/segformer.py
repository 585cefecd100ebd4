"""Segformer: labels for each place of an image, from stages of attention."""

from __future__ import annotations

from typing import Any

from bridges.config import Keys, read_activation
from bridges.conv_nets import DEPTHWISE, IGNORED, STATISTICS
from bridges.family import Family, NotNative
from bridges.image_encoders import (
    CONVOLUTION,
    HARMLESS,
    POINTS,
    image_architectures,
    in_stage,
    patch_map_rows,
    read_counts,
    read_depths,
    same_lengths,
    top_rows,
)
from bridges.table import Row
from bridges.text_encoders import label_count, layer_rows, map_rows, norm_rows
from dew.nn.backbones.segformer import Segformer

NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "up": "mlp.dense1",
    "down": "mlp.dense2",
}
NORMS = {"attention_norm": "layer_norm_1", "mlp_norm": "layer_norm_2"}
LARGEST_RATIO = 1024
LISTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "features": ("hidden_sizes", (32, 64, 160, 256)),
    "num_heads": ("num_attention_heads", (1, 2, 5, 8)),
    "patch_sizes": ("patch_sizes", (7, 3, 3, 3)),
    "strides": ("strides", (4, 2, 2, 2)),
    "squares": ("sr_ratios", (8, 4, 2, 1)),
}
"""dew's fields to the keys of lists with a number for each stage, and `SegformerConfig`'s."""


def model(keys: Keys) -> Segformer:
    """Return the model that a Segformer config describes; defaults are `SegformerConfig`'s."""
    if not keys.flag("reshape_last_stage", True):
        raise NotNative(f"{keys.where}: reshape_last_stage is false")
    depths = read_depths(keys, "depths", (2, 2, 2, 2))
    lists: dict[str, Any] = {
        field: read_counts(keys, key, default) for field, (key, default) in LISTS.items()
    }
    ratios = keys.numbers("mlp_ratios") or (4.0, 4.0, 4.0, 4.0)
    named = {"depths": depths, **{LISTS[field][0]: found for field, found in lists.items()}}
    stages = keys.integer("num_encoder_blocks", 4)
    same_lengths(keys, {**named, "mlp_ratios": ratios}, stages)
    widths, heads = lists["features"], lists["num_heads"]
    if any(width % count for width, count in zip(widths, heads, strict=True)):
        keys.clash("num_attention_heads", f"they do not divide hidden_sizes {list(widths)}")
    inner = [width * ratio for width, ratio in zip(widths, ratios, strict=True)]
    if min(inner) < 1 or max(ratios) > LARGEST_RATIO:
        keys.clash("mlp_ratios", f"no usable widths of hidden_sizes {list(widths)}")
    return Segformer(
        image_channels=keys.integer("num_channels", 3),
        depths=depths,
        **lists,
        mlp_ratios=ratios,
        activation=read_activation(keys, "hidden_act", "gelu"),
        head_features=keys.integer("decoder_hidden_size", 256),
        labels=label_count(keys),
    )


def rows(model: Segformer) -> tuple[Row, ...]:
    """Return Segformer's tensors (theirs) and dew's leaves (ours)."""
    found: list[Row] = []
    for stage, (heads, square) in enumerate(zip(model.num_heads, model.squares, strict=True)):
        cut = f"segformer.encoder.patch_embeddings.{stage}"
        found += [
            Row(f"{cut}.proj.weight", f"cut{stage}/kernel", CONVOLUTION),
            Row(f"{cut}.proj.bias", f"cut{stage}/bias"),
            *norm_rows(f"{cut}.layer_norm", f"cut{stage}_norm"),
            *norm_rows(f"segformer.encoder.layer_norm.{stage}", f"stage{stage}_norm"),
            *stage_rows(f"segformer.encoder.block.{stage}.{{layer}}.", stage, heads, square),
        ]
    if model.head == "segmentation":
        found += head_rows(len(model.depths))
    return (*found, *top_rows(model))


def stage_rows(layer: str, stage: int, heads: int, square: int) -> list[Row]:
    """Return the rows of a stage's layers."""
    rows = layer_rows(layer, heads, NAMES, NORMS)
    depth = f"{layer}mlp.dwconv.dwconv"
    rows.append(Row(f"{depth}.weight", "layers/mlp/depth/kernel", DEPTHWISE))
    rows.append(Row(f"{depth}.bias", "layers/mlp/depth/bias"))
    if square > 1:
        rows += patch_map_rows(f"{layer}attention.self.sr", "layers/attention/shrink")
        norm = f"{layer}attention.self.layer_norm"
        rows += norm_rows(norm, "layers/attention/shrink_norm")
    return in_stage(rows, stage)


def head_rows(stages: int) -> list[Row]:
    """Return the rows of the head that labels places."""
    rows = [
        Row("decode_head.linear_fuse.weight", "head_joint/kernel", POINTS),
        Row("decode_head.classifier.weight", "head_labels/kernel", POINTS),
        Row("decode_head.classifier.bias", "head_labels/bias"),
    ]
    for stage in range(stages):
        rows += map_rows(f"decode_head.linear_c.{stage}.proj", f"head_stage{stage}")
    for name, leaf in STATISTICS.items():
        rows.append(Row(f"decode_head.batch_norm.{name}", f"head_norm/{leaf}"))
    return rows


FAMILY = Family(
    model_type="segformer",
    architectures=("SegformerModel",),
    model=model,
    rows=rows,
    base_prefix="segformer.",
    embedding="segformer.encoder.patch_embeddings.0.proj.weight",
    heads=image_architectures("Segformer", ForSemanticSegmentation="segmentation"),
    head_names=(r"classifier\..*", r"decode_head\..*"),
    harmless=HARMLESS | {"layer_norm_eps", "image_size", "downsampling_rates"},
    ignored=IGNORED,
)
"""The family that `model_type: segformer` names."""
