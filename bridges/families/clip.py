"""CLIP: a text and an image tower, and projections that make their vectors comparable."""

from __future__ import annotations

from bridges.config import Keys
from bridges.family import Family
from bridges.text_encoders import label_count
from bridges.towers import (
    DUAL_HEADS,
    HARMLESS,
    IGNORED,
    clip_text,
    clip_vision,
    dual_rows,
    sections,
)
from dew.nn.backbones.dual_encoder import DualEncoder


def model(keys: Keys) -> DualEncoder:
    """Return the model that a CLIP config describes; defaults are `CLIPConfig`'s."""
    text, vision = sections(keys)
    return DualEncoder(
        text=clip_text(text),
        vision=clip_vision(vision),
        projected=keys.integer("projection_dim", 512),
        labels=label_count(keys),
    )


FAMILY = Family(
    model_type="clip",
    architectures=("CLIPModel",),
    model=model,
    rows=dual_rows,
    base_prefix="",
    embedding="text_model.embeddings.token_embedding.weight",
    heads={"CLIPModel": "towers", "CLIPForImageClassification": "image"},
    head_names=DUAL_HEADS,
    harmless=HARMLESS,
    ignored=IGNORED,
)
"""The family that `model_type: clip` names."""
