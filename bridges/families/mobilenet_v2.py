"""MobileNetV2: narrow layers that widen in between, for labels of images or of their places."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.conv_nets import IGNORED, unit_rows
from bridges.family import Family
from bridges.image_encoders import HARMLESS, POINTS, image_architectures, top_rows
from bridges.table import Row
from bridges.text_encoders import label_count
from dew.nn.backbones.conv_net import MobileNet

CHANNELS = (16, 24, 24, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 160, 160, 160, 320)
STRIDES = (2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1)
STEM, LAST = 32, 1280
LARGEST_FACTOR = 1000.0


def model(keys: Keys) -> MobileNet:
    """Return the model that a MobileNetV2 config describes; defaults are `MobileNetV2Config`'s.

    Source of widths and strides: Sandler et al. 2018, arXiv:1801.04381, table 2.
    """
    factor = _factor(keys, "depth_multiplier", 1.0)
    widening = _factor(keys, "expand_ratio", 6.0)
    divisor = keys.integer("depth_divisible_by", 8)
    least = keys.integer("min_depth", 8)

    def narrowed(channels: int) -> int:
        return whole_channels(round(channels * factor), divisor, least)

    features = tuple(narrowed(channels) for channels in CHANNELS)
    fixed = keys.flag("finegrained_output", True) and factor < 1.0
    strides, dilations = _strides(keys.integer("output_stride", 32))
    return MobileNet(
        image_channels=keys.integer("num_channels", 3),
        stem_features=narrowed(STEM),
        stem_widens=not keys.flag("first_layer_is_expansion", True),
        features=features,
        widened=tuple(
            whole_channels(round(width * widening), divisor, least) for width in features[:-1]
        ),
        strides=strides,
        dilations=dilations,
        last_features=LAST if fixed else narrowed(LAST),
        activation=read_activation(keys, "hidden_act", "relu6"),
        epsilon=keys.number("layer_norm_eps", 1e-3, low=0.0),
        padded_late=keys.flag("tf_padding", True),
        labels=label_count(keys),
    )


def _factor(keys: Keys, key: str, default: float) -> float:
    value = keys.number(key, default)
    if not 0 < value <= LARGEST_FACTOR:
        keys.refuse(key, f"expected a number above 0 and at most {LARGEST_FACTOR}")
    return value


def whole_channels(wanted: int, divisor: int, least: int) -> int:
    """Return the nearest multiple of `divisor` that is not a tenth too small, or `least`."""
    nearest = max(least, int(wanted + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * wanted else nearest


def _strides(wanted: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return strides and dilations that make one place stand for `wanted` pixels a side.

    Once it does, kernels look further apart in the place of each stride that is left.
    """
    strides, dilations = [], []
    reached, dilation = 2, 1
    for stride in STRIDES:
        if reached == wanted:
            strides.append(1)
            dilations.append(dilation)
            dilation *= stride
        else:
            strides.append(stride)
            dilations.append(1)
            reached *= stride
    return tuple(strides), tuple(dilations)


def rows(model: MobileNet) -> tuple[Row, ...]:
    """Return MobileNetV2's tensors (theirs) and dew's leaves (ours)."""
    base, stem = "mobilenet_v2.", "mobilenet_v2.conv_stem"
    found = unit_rows(f"{stem}.first_conv", "stem_first", "wide")
    layers = [(stem, "stem", model.stem_widens)]
    layers += [(f"{base}layer.{n}", f"layer{n}", True) for n in range(len(model.widened))]
    for theirs, ours, widens in layers:
        if widens:
            found += unit_rows(f"{theirs}.expand_1x1", f"{ours}_widen", "point")
        found += unit_rows(f"{theirs}.conv_3x3", f"{ours}_depth", "depth")
        found += unit_rows(f"{theirs}.reduce_1x1", f"{ours}_narrow", "point")
    found += unit_rows(f"{base}conv_1x1", "last", "point")
    if model.head == "segmentation":
        head = "segmentation_head."
        names = {"conv_pool": "pool", "conv_aspp": "places", "conv_projection": "joint"}
        for theirs, ours in names.items():
            found += unit_rows(f"{head}{theirs}", f"head_{ours}", "point")
        labels = "head_labels/convolution"
        found.append(Row(f"{head}classifier.convolution.weight", f"{labels}/kernel", POINTS))
        found.append(Row(f"{head}classifier.convolution.bias", f"{labels}/bias"))
    return (*found, *top_rows(model))


FAMILY = Family(
    model_type="mobilenet_v2",
    architectures=("MobileNetV2Model",),
    model=model,
    rows=rows,
    base_prefix="mobilenet_v2.",
    embedding="mobilenet_v2.conv_stem.first_conv.convolution.weight",
    heads=image_architectures("MobileNetV2", ForSemanticSegmentation="segmentation"),
    head_names=(r"classifier\..*", r"segmentation_head\..*"),
    harmless=HARMLESS | {"image_size"},
    ignored=IGNORED,
)
"""The family that `model_type: mobilenet_v2` names."""
