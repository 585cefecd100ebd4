"""What CLIP and SigLIP share: the config keys and rows of their two towers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bridges.config import Keys, read_activation
from bridges.family import NotNative
from bridges.image_encoders import HARMLESS as IMAGE_HARMLESS
from bridges.image_encoders import TOWER_NAMES, TOWER_NORMS, read_tower, tower_rows
from bridges.moves import TRANSPOSE
from bridges.table import Row
from bridges.text_encoders import layer_rows, map_rows, norm_rows
from dew.errors import shown
from dew.nn.backbones.dual_encoder import DualEncoder
from dew.nn.backbones.image_encoder import ImageSpec
from dew.nn.backbones.text_tower import TextSpec, TextTower

HARMLESS = IMAGE_HARMLESS | frozenset(["dropout", "projection_dim", "logit_scale_init_value"])
"""Training-time dropout, how weights were drawn, and sizes of maps that a half has not."""
IGNORED = (r"(.*\.)?embeddings\.position_ids",)
"""Buffers that count, which older checkpoints stored."""
OLD_END = 2
"""The end token's id in old configs of CLIP, whose towers read the largest id off."""


def sections(keys: Keys) -> tuple[Keys, Keys]:
    """Return the keys of text and image tower.

    Raises:
        NotNative: a second section that overrides the first.
    """
    for name in ("text_config_dict", "vision_config_dict"):
        if keys.section(name).values:
            raise NotNative(f"{keys.where}: {name} overrides values of another section")
    return keys.section("text_config"), keys.section("vision_config")


def text_sizes(keys: Keys, **defaults: int) -> dict[str, Any]:
    """Return the fields of a `TextSpec` that are sizes, defaults by the keys' names."""
    sizes = {field: keys.integer(key, defaults[key]) for field, key in SIZES.items()}
    if sizes["emb_features"] % sizes["num_heads"]:
        keys.clash("hidden_size", f"not divisible by num_attention_heads {sizes['num_heads']}")
    return sizes


SIZES = {
    "vocab_size": "vocab_size",
    "emb_features": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "mlp_features": "intermediate_size",
    "max_seq_len": "max_position_embeddings",
}
"""dew's fields to the keys of a text tower."""


def clip_text(keys: Keys) -> TextSpec:
    """Return CLIP's text tower; defaults are `CLIPTextConfig`'s."""
    end = keys.values.get("eos_token_id")
    if type(end) is list:
        raise NotNative(f"{keys.where}: eos_token_id is {shown(end)}")
    end = keys.integer("eos_token_id", 49407, low=0)
    return TextSpec(
        **text_sizes(
            keys,
            vocab_size=49408,
            hidden_size=512,
            num_hidden_layers=12,
            num_attention_heads=8,
            intermediate_size=2048,
            max_position_embeddings=77,
        ),
        norm_epsilon=keys.number("layer_norm_eps", 1e-5, low=0.0),
        activation=read_activation(keys, "hidden_act", "quick_gelu"),
        pooled="largest" if end == OLD_END else "end",
        end_token=end,
    )


def clip_vision(keys: Keys) -> ImageSpec:
    """Return CLIP's image tower; defaults are `CLIPVisionConfig`'s."""
    return square(
        keys,
        ImageSpec(
            **read_tower(keys, patch_size=32),
            norm_epsilon=keys.number("layer_norm_eps", 1e-5, low=0.0),
            activation=read_activation(keys, "hidden_act", "quick_gelu"),
            patch_bias=False,
            first_norm=True,
            final_norm="class",
            pooled="class",
            classified="patches",
        ),
    )


def siglip_text(keys: Keys) -> TextSpec:
    """Return SigLIP's text tower; defaults are `SiglipTextConfig`'s."""
    sizes = text_sizes(
        keys,
        vocab_size=32000,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=64,
    )
    return TextSpec(
        **sizes,
        norm_epsilon=keys.number("layer_norm_eps", 1e-6, low=0.0),
        activation=read_activation(keys, "hidden_act", "gelu_pytorch_tanh"),
        causal=False,
        pooled="last",
        pooled_features=keys.integer("projection_size", sizes["emb_features"]),
    )


def siglip_vision(keys: Keys) -> ImageSpec:
    """Return SigLIP's image tower; defaults are `SiglipVisionConfig`'s."""
    return square(
        keys,
        ImageSpec(
            **read_tower(keys),
            norm_epsilon=keys.number("layer_norm_eps", 1e-6, low=0.0),
            activation=read_activation(keys, "hidden_act", "gelu_pytorch_tanh"),
            class_token=False,
            pooled="attention" if keys.flag("vision_use_head", True) else "",
            classified="tokens",
        ),
    )


def square(keys: Keys, spec: ImageSpec) -> ImageSpec:
    """Refuse images or patches that are no squares: transformers has no such towers."""
    for name, (height, width) in (("image_size", spec.image_size), ("patch_size", spec.patch_size)):
        if height != width:
            keys.refuse(name, "expected one number for height and width")
    return spec


def text_rows(model: TextTower, base: str) -> list[Row]:
    """Return the rows of a text tower, `base` being what the names start with."""
    names = f"{base}encoder.layers.{{layer}}."
    rows = [
        Row(f"{base}embeddings.token_embedding.weight", "embed/table"),
        Row(f"{base}embeddings.position_embedding.weight", "position_embed/table"),
        *layer_rows(names, model.spec.num_heads, TOWER_NAMES, TOWER_NORMS),
        *norm_rows(f"{base}final_layer_norm", "final_norm"),
    ]
    return rows + (map_rows(f"{base}head", "pool") if model.spec.pooled_features else [])


def dual_rows(model: DualEncoder) -> tuple[Row, ...]:
    """Return the rows of both towers and what stands on them, or of the image tower with labels."""
    rows = beneath("vision_model", tower_rows(model.image_tower(), "vision_model."))
    if model.head == "image":
        return (*rows, *map_rows("classifier", "vision_model/top"))
    rows += beneath("text_model", text_rows(model.text_tower(), "text_model."))
    if model.projected:
        for name in ("text_projection", "visual_projection"):
            rows.append(Row(f"{name}.weight", f"{name}/kernel", TRANSPOSE))
    rows.append(Row("logit_scale", "logit_scale"))
    return (*rows, Row("logit_bias", "logit_bias")) if model.biased else tuple(rows)


def beneath(folder: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their leaves one level further down."""
    moved = []
    for row in rows:
        ours = tuple(f"{folder}/{path}" for path in row.leaves)
        moved.append(dataclasses.replace(row, ours=ours[0] if len(ours) == 1 else ours))
    return moved


DUAL_HEADS = (r"text_model\..*", r"(text|visual)_projection\..*", r"logit_.*", r"classifier\..*")
"""The tensors that only the comparison of texts and images, or only labels, need."""
