"""ConvNeXt: convolutions of each channel for itself, then maps of each place."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.conv_nets import DEPTHWISE
from bridges.family import Family
from bridges.image_encoders import (
    HARMLESS,
    image_architectures,
    patch_map_rows,
    read_counts,
    read_depths,
    read_pair,
    same_lengths,
    top_rows,
)
from bridges.table import Row
from bridges.text_encoders import label_count, map_rows, norm_rows
from dew.nn.backbones.conv_net import ConvNext


def model(keys: Keys) -> ConvNext:
    """Return the model that a ConvNeXt config describes; defaults are `ConvNextConfig`'s."""
    features = read_counts(keys, "hidden_sizes", (96, 192, 384, 768))
    depths = read_depths(keys, "depths", (3, 3, 9, 3))
    lists = {"hidden_sizes": features, "depths": depths}
    same_lengths(keys, lists, keys.integer("num_stages", 4))
    return ConvNext(
        image_channels=keys.integer("num_channels", 3),
        patch_size=read_pair(keys, "patch_size", 4),
        features=features,
        depths=depths,
        activation=read_activation(keys, "hidden_act", "gelu"),
        norm_epsilon=keys.number("layer_norm_eps", 1e-12, low=0.0),
        scaled=keys.number("layer_scale_init_value", 1e-6) > 0,
        labels=label_count(keys),
    )


def rows(model: ConvNext) -> tuple[Row, ...]:
    """Return ConvNeXt's tensors (theirs) and dew's leaves (ours)."""
    found = [
        *patch_map_rows("convnext.embeddings.patch_embeddings", "patches"),
        *norm_rows("convnext.embeddings.layernorm", "patch_norm"),
        *norm_rows("convnext.layernorm", "final_norm"),
    ]
    for stage, depth in enumerate(model.depths):
        base = f"convnext.encoder.stages.{stage}."
        if stage:
            found += norm_rows(f"{base}downsampling_layer.0", f"stage{stage}_norm")
            found += patch_map_rows(f"{base}downsampling_layer.1", f"stage{stage}_halve")
        for layer in range(depth):
            theirs, ours = f"{base}layers.{layer}.", f"stage{stage}_layer{layer}"
            found += [
                Row(f"{theirs}dwconv.weight", f"{ours}_depth/kernel", DEPTHWISE),
                Row(f"{theirs}dwconv.bias", f"{ours}_depth/bias"),
                *norm_rows(f"{theirs}layernorm", f"{ours}_norm"),
                *map_rows(f"{theirs}pwconv1", f"{ours}_widen"),
                *map_rows(f"{theirs}pwconv2", f"{ours}_narrow"),
            ]
            if model.scaled:
                found.append(Row(f"{theirs}layer_scale_parameter", f"{ours}_scale"))
    return (*found, *top_rows(model))


FAMILY = Family(
    model_type="convnext",
    architectures=("ConvNextModel",),
    model=model,
    rows=rows,
    base_prefix="convnext.",
    embedding="convnext.embeddings.patch_embeddings.weight",
    heads=image_architectures("ConvNext"),
    head_names=(r"classifier\..*",),
    harmless=HARMLESS | {"image_size"},
)
"""The family that `model_type: convnext` names."""
