"""What a checkpoint says of its images: size, crop, scale and colours, in every spelling."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bridges.config import Keys
from dew.errors import listed, shown

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_DEVIATION = (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Pillow's numbers of its filters."""
WARPED_SIDE = 384
ENDINGS = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")
HARMLESS = frozenset(
    [
        "image_processor_type",
        "feature_extractor_type",
        "processor_class",
        "do_convert_rgb",  # every image becomes RGB
        "do_reduce_labels",  # of segmentation maps, which are no inputs
        "reduce_labels",
        "default_to_square",
        "data_format",
        "input_data_format",
        "return_tensors",
        "device",
        "disable_grouping",
        "auto_map",
        "_valid_processor_keys",
    ]
)


@dataclass(frozen=True)
class Size:
    """A size that images are brought to.

    Attributes:
        height: with `width`: exactly this, whatever the proportions.
        width: see `height`.
        shortest_edge: the shorter side after the resize, in proportion.
        longest_edge: the most of the longer side; the shorter one gives way.
    """

    height: int | None = None
    width: int | None = None
    shortest_edge: int | None = None
    longest_edge: int | None = None


@dataclass(frozen=True)
class ImageSettings:
    """How an image becomes what a model reads; the steps in the order of the fields.

    Attributes:
        size: of the resize; None leaves the image as it is.
        resample: one of `FILTERS`' values.
        crop: height and width that are cut from the middle, with black around what is smaller;
            None for no crop.
        scale: what every level is multiplied by; None leaves it.
        mean: subtracted from each channel; None for no normalisation.
        deviation: what each channel is then divided by.
    """

    size: Size | None = None
    resample: str = "bilinear"
    crop: tuple[int, int] | None = None
    scale: float | None = 1 / 255
    mean: tuple[float, float, float] | None = None
    deviation: tuple[float, float, float] = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class _Kind:
    """A class of image processors: its defaults, and what a lone number for the size means."""

    size: Mapping[str, int]
    resample: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    crop: int | None = None
    square: bool = False
    crop_share: float | None = None
    models: tuple[str, ...] = field(default=())


def _square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


KINDS = {
    "CLIP": _Kind({"shortest_edge": 224}, 3, CLIP_MEAN, CLIP_DEVIATION, crop=224, models=("clip",)),
    "Bit": _Kind(
        {"shortest_edge": 224}, 3, CLIP_MEAN, CLIP_DEVIATION, crop=224, models=("dinov2", "bit")
    ),
    "Siglip": _Kind(_square(224), 3, HALF, HALF, models=("siglip",)),
    "ViT": _Kind(_square(224), 2, HALF, HALF, square=True, models=("vit", "swin")),
    "DeiT": _Kind(_square(256), 3, HALF, HALF, crop=224, square=True, models=("deit",)),
    "ConvNext": _Kind(
        {"shortest_edge": 384},
        3,
        HALF,
        HALF,
        crop_share=224 / 256,
        models=("convnext", "resnet"),
    ),
    "MobileNetV2": _Kind({"shortest_edge": 256}, 2, HALF, HALF, crop=224, models=("mobilenet_v2",)),
    "Segformer": _Kind(
        _square(512), 2, IMAGENET_MEAN, IMAGENET_DEVIATION, square=True, models=("segformer",)
    ),
}
"""The classes that are read, by their names without the ending.

Source: transformers 5.24, models/*/image_processing_pil_*.py.
"""


def kind_of(keys: Keys, model_type: str = "") -> str | None:
    """Return the name in `KINDS` of a processor's class, or of the model's own; None for others.

    Args:
        keys: of the processor's config.
        model_type: what decides where the config names no class.
    """
    for key in ("image_processor_type", "feature_extractor_type"):
        name = keys.text(key, None)
        if name is not None:
            ending = next((end for end in ENDINGS if name.endswith(end)), "")
            stem = name.removesuffix(ending).replace("ConvNeXT", "ConvNext")
            return stem if ending and stem in KINDS else None
    return next((name for name, kind in KINDS.items() if model_type in kind.models), None)


def read_settings(keys: Keys, name: str) -> ImageSettings:
    """Return the settings of a config; what it does not say is the class's own.

    Args:
        keys: of the processor's config.
        name: of the class, in `KINDS`.

    Raises:
        InputRefused: values that are no such settings, or a step that is not computed.
    """
    kind = KINDS[name]
    settings = ImageSettings(
        size=_size(keys, kind) if keys.flag("do_resize", True) else None,
        resample=_filter(keys, kind),
        crop=_crop(keys, kind),
        scale=keys.number("rescale_factor", 1 / 255) if keys.flag("do_rescale", True) else None,
        mean=_channels(keys, "image_mean", kind.mean),
        deviation=_channels(keys, "image_std", kind.deviation),
    )
    if not keys.flag("do_normalize", True):
        settings = ImageSettings(settings.size, settings.resample, settings.crop, settings.scale)
    if kind.crop_share is not None and settings.size is not None:
        settings = _shared(keys, kind, settings)
    keys.only("do_pad", False)
    keys.only("pad_size")
    keys.only("do_flip_channel_order", False)
    # Their values mean nothing to a step that is off.
    for key in ("size", "crop_size", "rescale_factor", "crop_pct"):
        keys.only(key, keys.values.get(key))
    unread = keys.unread(HARMLESS)
    if unread:
        warnings.warn(
            listed(
                f"{keys.where}: keys of the image processor that dew does not know and does not "
                "follow:",
                [shown(key)[1:-1] for key in unread],
            ),
            stacklevel=2,
        )
    return settings


def _size(keys: Keys, kind: _Kind) -> Size:
    """Return the size of an object, a pair, or a lone number."""
    value: Any = keys.values.get("size")
    if isinstance(value, list) and len(value) == 2:
        value = dict(zip(("height", "width"), value, strict=True))
    elif type(value) is int:
        square = keys.flag("default_to_square", kind.square)
        value = _square(value) if square else {"shortest_edge": value}
    elif value is None:
        value = dict(kind.size)
    if not isinstance(value, dict):
        keys.refuse("size", "expected a number, a pair or an object")
    found = Keys(value, keys.where, ("size",))
    names = ("height", "width", "shortest_edge", "longest_edge")
    size = Size(*(found.integer(name, None) for name in names))
    whole = size.height is not None and size.width is not None
    if found.unread() or whole == (size.shortest_edge is not None):
        keys.refuse("size", "expected height and width, or shortest_edge (with longest_edge)")
    if (size.height is None) != (size.width is None):
        keys.refuse("size", "expected both height and width")
    return size


def _crop(keys: Keys, kind: _Kind) -> tuple[int, int] | None:
    """Return height and width of the crop, None where there is none."""
    if not keys.flag("do_center_crop", kind.crop is not None):
        return None
    value: Any = keys.values.get("crop_size")
    if value is None and kind.crop is None:
        keys.refuse("crop_size", "expected a number or height and width, as do_center_crop is true")
    value = kind.crop if value is None else value
    if isinstance(value, list) and len(value) == 2:
        value = dict(zip(("height", "width"), value, strict=True))
    elif type(value) is int:
        value = _square(value)
    if not isinstance(value, dict) or set(value) != {"height", "width"}:
        keys.refuse("crop_size", "expected a number or height and width")
    found = Keys(value, keys.where, ("crop_size",))
    return found.integer("height"), found.integer("width")


def _filter(keys: Keys, kind: _Kind) -> str:
    number = keys.integer("resample", kind.resample, low=0)
    if number not in FILTERS:
        keys.refuse("resample", f"expected one of Pillow's filters, {FILTERS}")
    return FILTERS[number]


def _channels(
    keys: Keys, key: str, default: tuple[float, float, float]
) -> tuple[float, float, float]:
    value = keys.values.get(key)
    values = (keys.number(key),) * 3 if type(value) in (int, float) else keys.numbers(key)
    values = values or default
    if len(values) != 3 or (key == "image_std" and min(values) <= 0):
        keys.refuse(key, "expected three numbers, deviations above 0")
    return (values[0], values[1], values[2])


def _shared(keys: Keys, kind: _Kind, settings: ImageSettings) -> ImageSettings:
    """Return ConvNext's settings: a share of the middle below 384 pixels, a warped square above."""
    size = settings.size
    edge = None if size is None else size.shortest_edge
    if edge is None:
        keys.refuse("size", "expected shortest_edge")
    if settings.crop is not None:
        keys.refuse("do_center_crop", "this class crops by crop_pct")
    share = keys.number("crop_pct", kind.crop_share, low=0.0)
    if not 0 < share <= 1:
        keys.refuse("crop_pct", "expected a share above 0 and at most 1")
    if edge >= WARPED_SIDE:
        size, crop = Size(height=edge, width=edge), None
    else:
        size, crop = Size(shortest_edge=int(edge / share)), (edge, edge)
    return ImageSettings(
        size, settings.resample, crop, settings.scale, settings.mean, settings.deviation
    )
