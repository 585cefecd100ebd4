"""CLIP's image tower alone, with its projection or without."""

from __future__ import annotations

from bridges.config import Keys
from bridges.family import Family
from bridges.image_encoders import tower_rows
from bridges.moves import TRANSPOSE
from bridges.table import Row
from bridges.towers import HARMLESS, IGNORED, clip_vision
from dew.nn.backbones.image_encoder import ImageEncoder


def model(keys: Keys) -> ImageEncoder:
    """Return the model that a config of CLIP's image tower describes."""
    return ImageEncoder(spec=clip_vision(keys), projected=keys.integer("projection_dim", 512))


def rows(model: ImageEncoder) -> tuple[Row, ...]:
    """Return the tower's tensors (theirs) and dew's leaves (ours)."""
    found = tower_rows(model, "vision_model.")
    if model.head == "projection":
        found.append(Row("visual_projection.weight", "projection/kernel", TRANSPOSE))
    return tuple(found)


FAMILY = Family(
    model_type="clip_vision_model",
    architectures=("CLIPVisionModel",),
    model=model,
    rows=rows,
    base_prefix="vision_model.",
    embedding="vision_model.embeddings.position_embedding.weight",
    heads={"CLIPVisionModel": "", "CLIPVisionModelWithProjection": "projection"},
    head_names=(r"visual_projection\..*",),
    harmless=HARMLESS,
    ignored=IGNORED,
)
"""The family that `model_type: clip_vision_model` names."""
