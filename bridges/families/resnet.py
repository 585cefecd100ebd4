"""ResNet: convolutions beside shortcuts, the statistics of their batch norms fixed."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.conv_nets import IGNORED, unit_rows
from bridges.family import Family
from bridges.image_encoders import (
    HARMLESS,
    image_architectures,
    read_counts,
    read_depths,
    same_lengths,
    top_rows,
)
from bridges.table import Row
from bridges.text_encoders import label_count
from dew.errors import listed
from dew.nn.backbones.conv_net import NARROWING, ResNet

KINDS = ("basic", "bottleneck")


def model(keys: Keys) -> ResNet:
    """Return the model that a ResNet config describes; defaults are `ResNetConfig`'s."""
    kind = keys.text("layer_type", "bottleneck")
    if kind not in KINDS:
        keys.refuse("layer_type", listed("expected one of", list(KINDS)))
    features = read_counts(keys, "hidden_sizes", (256, 512, 1024, 2048))
    depths = read_depths(keys, "depths", (3, 4, 6, 3))
    same_lengths(keys, {"hidden_sizes": features, "depths": depths}, None)
    if kind == "bottleneck" and min(features) < NARROWING:
        keys.clash("hidden_sizes", f"bottlenecks need at least {NARROWING} features")
    return ResNet(
        image_channels=keys.integer("num_channels", 3),
        stem_features=keys.integer("embedding_size", 64),
        features=features,
        depths=depths,
        bottleneck=kind == "bottleneck",
        activation=read_activation(keys, "hidden_act", "relu"),
        halved_first=keys.flag("downsample_in_first_stage", False),
        halved_early=keys.flag("downsample_in_bottleneck", False),
        labels=label_count(keys),
    )


def rows(model: ResNet) -> tuple[Row, ...]:
    """Return ResNet's tensors (theirs) and dew's leaves (ours)."""
    found = unit_rows("resnet.embedder.embedder", "stem", "wide")
    shortcuts = model.shortcuts()
    for name, features, stride in model.layers():
        stage, layer = (part.lstrip("stagelyr") for part in name.split("_"))
        theirs = f"resnet.encoder.stages.{stage}.layers.{layer}"
        if shortcuts[name]:
            found += unit_rows(f"{theirs}.shortcut", f"{name}_shortcut", "point")
        for number, part in enumerate(model.convolutions(features, stride)):
            kernel = "wide" if "size" in part else "point"
            found += unit_rows(f"{theirs}.layer.{number}", f"{name}_conv{number}", kernel)
    return (*found, *top_rows(model, "classifier.1"))


FAMILY = Family(
    model_type="resnet",
    architectures=("ResNetModel",),
    model=model,
    rows=rows,
    base_prefix="resnet.",
    embedding="resnet.embedder.embedder.convolution.weight",
    heads=image_architectures("ResNet"),
    head_names=(r"classifier\..*",),
    harmless=HARMLESS,
    ignored=IGNORED,
)
"""The family that `model_type: resnet` names."""
