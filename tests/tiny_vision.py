"""Tiny configs of transformers' image models, one for each case of the vision tests."""

from __future__ import annotations

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
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", VISION),
    "vit long": ("ViT", {**VISION, "image_size": [16, 26], "qkv_bias": False}),
    "dinov2": ("Dinov2", VISION),
    "dinov2 gated": ("Dinov2", {**VISION, "use_swiglu_ffn": True, "qkv_bias": False}),
    "clip": ("CLIP", {**TOWERS, "projection_dim": 20}),
    "clip text": ("CLIPText", {**TEXT, "projection_dim": 20}),
    "clip old text": ("CLIPText", {**TEXT, "eos_token_id": 2}),
    "clip vision": ("CLIPVision", {**VISION, "projection_dim": 20}),
    "siglip": ("Siglip", EQUAL_TOWERS),
    "siglip text": ("SiglipText", {**TEXT, "projection_size": 20}),
    "siglip vision": ("SiglipVision", VISION),
    "siglip headless vision": ("SiglipVision", {**VISION, "vision_use_head": False}),
    "resnet": ("ResNet", {**STAGES, "embedding_size": 8}),
    "resnet basic": (
        "ResNet",
        {
            **STAGES,
            "embedding_size": 8,
            "layer_type": "basic",
            "downsample_in_first_stage": True,
            "hidden_act": "gelu",
        },
    ),
    "resnet early": ("ResNet", {**STAGES, "downsample_in_bottleneck": True}),
    "convnext": ("ConvNext", {**STAGES, "num_stages": 2}),
    "convnext plain": ("ConvNext", {**STAGES, "num_stages": 2, "layer_scale_init_value": 0.0}),
    "mobilenet_v2": ("MobileNetV2", {"depth_multiplier": 0.25}),
    "mobilenet_v2 dense": (
        "MobileNetV2",
        {
            "depth_multiplier": 0.35,
            "output_stride": 8,
            "tf_padding": False,
            "first_layer_is_expansion": False,
            "finegrained_output": False,
            "depth_divisible_by": 4,
        },
    ),
    "swin": ("Swin", WINDOWS),
    "swin placed": (
        "Swin",
        {**WINDOWS, "use_absolute_embeddings": True, "qkv_bias": False, "image_size": 32},
    ),
    "segformer": ("Segformer", BLOCKS),
}
"""Each model type, and what tells its cases apart, to the start of its classes and a config."""
CASES = {
    "vit": ("Model", "ForImageClassification"),
    "vit long": ("ForImageClassification",),
    "dinov2": ("Model", "ForImageClassification"),
    "dinov2 gated": ("Model",),
    "clip": ("Model", "ForImageClassification"),
    "clip text": ("Model", "ModelWithProjection"),
    "clip old text": ("Model",),
    "clip vision": ("Model", "ModelWithProjection"),
    "siglip": ("Model", "ForImageClassification"),
    "siglip text": ("Model",),
    "siglip vision": ("Model",),
    "siglip headless vision": ("Model",),
    "resnet": ("Model", "ForImageClassification"),
    "resnet basic": ("Model",),
    "resnet early": ("Model",),
    "convnext": ("Model", "ForImageClassification"),
    "convnext plain": ("Model",),
    "mobilenet_v2": ("Model", "ForImageClassification", "ForSemanticSegmentation"),
    "mobilenet_v2 dense": ("Model",),
    "swin": ("Model", "ForImageClassification"),
    "swin placed": ("Model",),
    "segformer": ("Model", "ForImageClassification", "ForSemanticSegmentation"),
}
"""The classes of each."""
SIZES = {
    "vit long": (16, 26),
    "resnet": (37, 32),
    "convnext": (35, 32),
    "mobilenet_v2": (71, 64),
    "mobilenet_v2 dense": (41, 36),
    "swin": (30, 41),
    "swin placed": (32, 32),
    "segformer": (37, 32),
}
SIDE = 24
ROWS, LENGTH, END = 2, 12, 98
"""Height and width of the images of a case where they are no squares of `SIDE`; then how many
images there are, how many tokens a text has, and the id of its end token."""
