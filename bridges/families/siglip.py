"""SigLIP: a text and an image tower whose own vectors are compared, each pair for itself."""

from __future__ import annotations

from bridges.config import Keys
from bridges.family import Family
from bridges.text_encoders import label_count
from bridges.towers import (
    DUAL_HEADS,
    HARMLESS,
    IGNORED,
    dual_rows,
    sections,
    siglip_text,
    siglip_vision,
)
from dew.nn.backbones.dual_encoder import DualEncoder


def model(keys: Keys) -> DualEncoder:
    """Return the model that a SigLIP config describes; defaults are `SiglipConfig`'s."""
    parts = sections(keys)
    text, vision = siglip_text(parts[0]), siglip_vision(parts[1])
    named = keys.values.get("architectures")
    if "SiglipForImageClassification" not in (named or ()):
        if not vision.pooled:
            parts[1].clash("vision_use_head", "no vector is left to compare")
        if text.pooled_features != vision.emb_features:
            parts[0].clash(
                "projection_size", f"the images' vectors have {vision.emb_features} features"
            )
    return DualEncoder(text=text, vision=vision, projected=0, biased=True, labels=label_count(keys))


FAMILY = Family(
    model_type="siglip",
    architectures=("SiglipModel",),
    model=model,
    rows=dual_rows,
    base_prefix="",
    embedding="text_model.embeddings.token_embedding.weight",
    heads={"SiglipModel": "towers", "SiglipForImageClassification": "image"},
    head_names=DUAL_HEADS,
    harmless=HARMLESS,
    ignored=IGNORED,
)
"""The family that `model_type: siglip` names."""
