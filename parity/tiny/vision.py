"""Tiny configs of models that see, natively: one for each case and head of a family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 24,
    "patch_size": 8,
}
TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 20,
    "eos_token_id": 98,
}
TOWERS = {"text_config": {**TEXT, "hidden_size": 24}, "vision_config": VISION}
EQUAL_TOWERS = {"text_config": TEXT, "vision_config": VISION}
WINDOWS = {
    "image_size": 30,
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [2, 3],
    "num_heads": [2, 4],
    "window_size": 3,
}
BLOCKS = {
    "num_encoder_blocks": 2,
    "depths": [1, 2],
    "sr_ratios": [2, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 3],
    "decoder_hidden_size": 12,
}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 2]}
HEADS = {
    "Model": "",
    "ForImageClassification": " labels",
    "ForSemanticSegmentation": " places",
    "ModelWithProjection": " projected",
}
"""The ends of transformers' class names, and what the names of the models here end with."""


def _each(
    name: str, start: str, sizes: Mapping[str, Any], *heads: str, kind: str = ""
) -> dict[str, dict[str, Any]]:
    """Return by name the config of each head of a case.

    Args:
        name: of the case.
        start: what the class names start with.
        sizes: the rest of the config.
        *heads: keys of `HEADS`.
        kind: the model type, where it is not the name's first word.
    """
    common = {"model_type": kind or name.split()[0], "num_labels": 3}
    return {
        name + HEADS[head]: {**common, "architectures": [start + head], **sizes} for head in heads
    }


MODELS: Mapping[str, Mapping[str, Any]] = {
    **_each("vit", "ViT", VISION, "Model", "ForImageClassification"),
    **_each(
        "vit long",
        "ViT",
        {**VISION, "image_size": [16, 26], "qkv_bias": False},
        "ForImageClassification",
    ),
    **_each("dinov2", "Dinov2", VISION, "Model", "ForImageClassification"),
    **_each(
        "dinov2 gated", "Dinov2", {**VISION, "use_swiglu_ffn": True, "qkv_bias": False}, "Model"
    ),
    **_each("clip", "CLIP", {**TOWERS, "projection_dim": 28}, "Model", "ForImageClassification"),
    **_each(
        "clip text",
        "CLIPText",
        {**TEXT, "projection_dim": 28},
        "Model",
        "ModelWithProjection",
        kind="clip_text_model",
    ),
    **_each(
        "clip old text", "CLIPText", {**TEXT, "eos_token_id": 2}, "Model", kind="clip_text_model"
    ),
    **_each(
        "clip vision",
        "CLIPVision",
        {**VISION, "projection_dim": 28},
        "Model",
        "ModelWithProjection",
        kind="clip_vision_model",
    ),
    **_each("siglip", "Siglip", EQUAL_TOWERS, "Model", "ForImageClassification"),
    **_each(
        "siglip text",
        "SiglipText",
        {**TEXT, "projection_size": 28},
        "Model",
        kind="siglip_text_model",
    ),
    **_each("siglip vision", "SiglipVision", VISION, "Model", kind="siglip_vision_model"),
    **_each(
        "siglip headless vision",
        "SiglipVision",
        {**VISION, "vision_use_head": False},
        "Model",
        kind="siglip_vision_model",
    ),
    **_each("resnet", "ResNet", {**STAGES, "embedding_size": 8}, "Model", "ForImageClassification"),
    **_each(
        "resnet basic",
        "ResNet",
        {
            **STAGES,
            "embedding_size": 8,
            "layer_type": "basic",
            "downsample_in_first_stage": True,
            "hidden_act": "gelu",
        },
        "Model",
    ),
    **_each("resnet early", "ResNet", {**STAGES, "downsample_in_bottleneck": True}, "Model"),
    **_each("convnext", "ConvNext", {**STAGES, "num_stages": 2}, "Model", "ForImageClassification"),
    **_each(
        "convnext plain",
        "ConvNext",
        {**STAGES, "num_stages": 2, "layer_scale_init_value": 0.0},
        "Model",
    ),
    **_each(
        "mobilenet_v2",
        "MobileNetV2",
        {"depth_multiplier": 0.25},
        "Model",
        "ForImageClassification",
        "ForSemanticSegmentation",
    ),
    **_each(
        "mobilenet_v2 dense",
        "MobileNetV2",
        {
            "depth_multiplier": 0.35,
            "output_stride": 8,
            "tf_padding": False,
            "first_layer_is_expansion": False,
            "finegrained_output": False,
            "depth_divisible_by": 4,
        },
        "Model",
    ),
    **_each("swin", "Swin", WINDOWS, "Model", "ForImageClassification"),
    **_each(
        "swin placed",
        "Swin",
        {**WINDOWS, "use_absolute_embeddings": True, "qkv_bias": False, "image_size": 32},
        "Model",
    ),
    **_each(
        "segformer",
        "Segformer",
        BLOCKS,
        "Model",
        "ForImageClassification",
        "ForSemanticSegmentation",
    ),
}
"""Name to config.json."""

_ODD = {
    "resnet": (37, 32),
    "convnext": (35, 32),
    "mobilenet_v2": (71, 64),
    "mobilenet_v2 dense": (41, 36),
    "swin": (30, 41),
    "segformer": (37, 32),
}
SIZES = {
    name: size
    for name in MODELS
    for case, size in _ODD.items()
    if name in {case + end for end in HEADS.values()}
}
"""Height and width of the images that a model is asked about, where they are not its config's."""
SIZES |= {"resnet basic": (24, 24), "resnet early": (24, 24), "convnext plain": (24, 24)}
