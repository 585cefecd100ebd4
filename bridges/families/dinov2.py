"""DINOv2: a ViT with scaled branches, for images of any size."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.family import Family, NotNative
from bridges.image_encoders import (
    HARMLESS,
    encoder_rows,
    image_architectures,
    named_embedding_rows,
    read_tower,
    top_rows,
)
from bridges.table import Row
from bridges.text_encoders import label_count
from dew.nn.backbones.image_encoder import ImageEncoder, ImageSpec

NAMES = {
    "query": "attention.attention.query",
    "key": "attention.attention.key",
    "value": "attention.attention.value",
    "out": "attention.output.dense",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
GATED = {**NAMES, "up": "mlp.weights_in", "down": "mlp.weights_out"}
NORMS = {"attention_norm": "norm1", "mlp_norm": "norm2"}
MULTIPLE = 8


def model(keys: Keys) -> ImageEncoder:
    """Return the model that a DINOv2 config describes; defaults are `Dinov2Config`'s."""
    sizes = read_tower(keys, intermediate_size=0, patch_size=14)
    gated = keys.flag("use_swiglu_ffn", False)
    inner = int(sizes["emb_features"] * keys.number("mlp_ratio", 4, low=0.0))
    if gated:
        inner = -(-int(inner * 2 / 3) // MULTIPLE) * MULTIPLE
    if inner < 1:
        keys.clash("mlp_ratio", f"no width is left of hidden_size {sizes['emb_features']}")
    act = read_activation(keys, "hidden_act", "gelu")
    spec = ImageSpec(
        **sizes,
        mlp_features=inner,
        norm_epsilon=keys.number("layer_norm_eps", 1e-6, low=0.0),
        activation="silu" if gated else act,
        mlp="gated" if gated else "plain",
        qkv_bias=keys.flag("qkv_bias", True),
        mask_token=keys.flag("use_mask_token", True),
        layer_scale=True,
        resized=True,
        pooled="class",
        classified="class_mean",
    )
    if spec.grid[0] != spec.grid[1]:
        raise NotNative(f"{keys.where}: the positions are no square, {list(spec.grid)}")
    return ImageEncoder(spec=spec, labels=label_count(keys))


def rows(model: ImageEncoder) -> tuple[Row, ...]:
    """Return DINOv2's tensors (theirs) and dew's leaves (ours)."""
    layer = "dinov2.encoder.layer.{layer}."
    names = GATED if model.spec.mlp == "gated" else NAMES
    return (
        *named_embedding_rows(model.spec, "dinov2."),
        *encoder_rows(model.spec, layer, names, NORMS),
        Row(f"{layer}layer_scale1.lambda1", "layers/attention_scale"),
        Row(f"{layer}layer_scale2.lambda1", "layers/mlp_scale"),
        *top_rows(model),
    )


FAMILY = Family(
    model_type="dinov2",
    architectures=("Dinov2Model",),
    model=model,
    rows=rows,
    base_prefix="dinov2.",
    embedding="dinov2.embeddings.position_embeddings",
    heads=image_architectures("Dinov2"),
    head_names=(r"classifier\..*",),
    harmless=HARMLESS | {"intermediate_size"},
)
"""The family that `model_type: dinov2` names."""
