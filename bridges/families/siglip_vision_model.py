"""SigLIP's image tower alone."""

from __future__ import annotations

from bridges.config import Keys
from bridges.family import Family
from bridges.image_encoders import tower_rows
from bridges.table import Row
from bridges.towers import HARMLESS, IGNORED, siglip_vision
from dew.nn.backbones.image_encoder import ImageEncoder


def model(keys: Keys) -> ImageEncoder:
    """Return the model that a config of SigLIP's image tower describes."""
    return ImageEncoder(spec=siglip_vision(keys))


def rows(model: ImageEncoder) -> tuple[Row, ...]:
    """Return the tower's tensors (theirs) and dew's leaves (ours)."""
    return tuple(tower_rows(model, "vision_model."))


FAMILY = Family(
    model_type="siglip_vision_model",
    architectures=("SiglipVisionModel",),
    model=model,
    rows=rows,
    base_prefix="vision_model.",
    embedding="vision_model.embeddings.position_embedding.weight",
    heads={"SiglipVisionModel": ""},
    harmless=HARMLESS,
    ignored=IGNORED,
)
"""The family that `model_type: siglip_vision_model` names."""
