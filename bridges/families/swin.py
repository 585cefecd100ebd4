"""Swin: stages of windowed attention."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.family import Family
from bridges.image_encoders import (
    HARMLESS,
    image_architectures,
    in_stage,
    patch_map_rows,
    read_counts,
    read_depths,
    read_pair,
    same_lengths,
    top_rows,
    unwrapped,
)
from bridges.moves import TRANSPOSE
from bridges.table import Row
from bridges.text_encoders import label_count, layer_rows, norm_rows
from dew.nn.backbones.swin import Swin

NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}
NORMS = {"attention_norm": "layernorm_before", "mlp_norm": "layernorm_after"}


def model(keys: Keys) -> Swin:
    """Return the model that a Swin config describes; defaults are `SwinConfig`'s."""
    depths = read_depths(keys, "depths", (2, 2, 6, 2))
    heads = read_counts(keys, "num_heads", (3, 6, 12, 24))
    same_lengths(keys, {"depths": depths, "num_heads": heads}, None)
    width = keys.integer("embed_dim", 96)
    if any(width * 2**stage % count for stage, count in enumerate(heads)):
        keys.clash("num_heads", f"they do not divide the stages' widths, embed_dim {width} doubled")
    ratio = keys.number("mlp_ratio", 4.0, low=0.0)
    if int(ratio * width) < 1:
        keys.clash("mlp_ratio", f"no width is left of embed_dim {width}")
    return Swin(
        image_size=read_pair(keys, "image_size", 224),
        patch_size=read_pair(keys, "patch_size", 4),
        image_channels=keys.integer("num_channels", 3),
        emb_features=width,
        depths=depths,
        num_heads=heads,
        window=keys.integer("window_size", 7),
        mlp_ratio=ratio,
        norm_epsilon=keys.number("layer_norm_eps", 1e-5, low=0.0),
        activation=read_activation(keys, "hidden_act", "gelu"),
        qkv_bias=keys.flag("qkv_bias", True),
        placed=keys.flag("use_absolute_embeddings", False),
        labels=label_count(keys),
    )


def rows(model: Swin) -> tuple[Row, ...]:
    """Return Swin's tensors (theirs) and dew's leaves (ours)."""
    found = [
        *patch_map_rows("swin.embeddings.patch_embeddings.projection", "patches"),
        *norm_rows("swin.embeddings.norm", "patch_norm"),
        *norm_rows("swin.layernorm", "final_norm"),
    ]
    if model.placed:
        found.append(Row("swin.embeddings.position_embeddings", "position_embed", unwrapped(1)))
    for stage, heads in enumerate(model.num_heads):
        base = f"swin.encoder.layers.{stage}."
        found += stage_rows(f"{base}blocks.{{layer}}.", stage, heads, bias=model.qkv_bias)
        if stage < len(model.depths) - 1:
            found += norm_rows(f"{base}downsample.norm", f"merge{stage}_norm")
            theirs, ours = f"{base}downsample.reduction.weight", f"merge{stage}/kernel"
            found.append(Row(theirs, ours, TRANSPOSE))
    return (*found, *top_rows(model))


def stage_rows(layer: str, stage: int, heads: int, *, bias: bool) -> list[Row]:
    """Return the rows of a stage's layers."""
    rows = layer_rows(layer, heads, NAMES, NORMS)
    if not bias:
        bare = {f"layers/attention/{name}/bias" for name in ("query", "key", "value")}
        rows = [row for row in rows if row.ours not in bare]
    table = f"{layer}attention.self.relative_position_bias_table"
    rows.append(Row(table, "layers/attention/bias_table"))
    return in_stage(rows, stage)


FAMILY = Family(
    model_type="swin",
    architectures=("SwinModel",),
    model=model,
    rows=rows,
    base_prefix="swin.",
    embedding="swin.embeddings.patch_embeddings.projection.weight",
    heads=image_architectures("Swin"),
    head_names=(r"classifier\..*",),
    harmless=HARMLESS | {"hidden_size", "num_layers"},
    ignored=(r".*\.relative_position_index",),
)
"""The family that `model_type: swin` names."""
