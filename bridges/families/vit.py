"""ViT: images cut into patches, a class token before them."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.family import Family
from bridges.image_encoders import (
    HARMLESS,
    encoder_rows,
    image_architectures,
    named_embedding_rows,
    read_tower,
    top_rows,
)
from bridges.table import Row
from bridges.text_encoders import label_count, map_rows
from dew.nn.backbones.image_encoder import ImageEncoder, ImageSpec

NAMES = {
    "query": "attention.attention.query",
    "key": "attention.attention.key",
    "value": "attention.attention.value",
    "out": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}
NORMS = {"attention_norm": "layernorm_before", "mlp_norm": "layernorm_after"}


def model(keys: Keys) -> ImageEncoder:
    """Return the model that a ViT config describes; defaults are `ViTConfig`'s."""
    sizes = read_tower(keys)
    spec = ImageSpec(
        **sizes,
        norm_epsilon=keys.number("layer_norm_eps", 1e-12, low=0.0),
        activation=read_activation(keys, "hidden_act", "gelu"),
        qkv_bias=keys.flag("qkv_bias", True),
        pooled_features=keys.integer("pooler_output_size", sizes["emb_features"]),
        pooled_activation=read_activation(keys, "pooler_act", "tanh"),
    )
    return ImageEncoder(spec=spec, labels=label_count(keys))


def rows(model: ImageEncoder) -> tuple[Row, ...]:
    """Return ViT's tensors (theirs) and dew's leaves (ours)."""
    found = named_embedding_rows(model.spec, "vit.")
    found += encoder_rows(model.spec, "vit.encoder.layer.{layer}.", NAMES, NORMS)
    if model.pools:
        found += map_rows("vit.pooler.dense", "pool")
    return (*found, *top_rows(model))


FAMILY = Family(
    model_type="vit",
    architectures=("ViTModel",),
    model=model,
    rows=rows,
    base_prefix="vit.",
    embedding="vit.embeddings.position_embeddings",
    heads=image_architectures("ViT"),
    head_names=(r"classifier\..*", r"vit\.pooler\..*"),
    parts={"pooler": r"vit\.pooler\..*"},
    harmless=HARMLESS,
)
"""The family that `model_type: vit` names."""
