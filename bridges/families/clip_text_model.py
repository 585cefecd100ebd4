"""CLIP's text tower alone, with its projection or without."""

from __future__ import annotations

from bridges.config import Keys
from bridges.family import Family
from bridges.moves import TRANSPOSE
from bridges.table import Row
from bridges.towers import HARMLESS, IGNORED, clip_text, text_rows
from dew.nn.backbones.text_tower import TextTower


def model(keys: Keys) -> TextTower:
    """Return the model that a config of CLIP's text tower describes."""
    return TextTower(spec=clip_text(keys), projected=keys.integer("projection_dim", 512))


def rows(model: TextTower) -> tuple[Row, ...]:
    """Return the tower's tensors (theirs) and dew's leaves (ours)."""
    found = text_rows(model, "text_model.")
    if model.head == "projection":
        found.append(Row("text_projection.weight", "projection/kernel", TRANSPOSE))
    return tuple(found)


FAMILY = Family(
    model_type="clip_text_model",
    architectures=("CLIPTextModel",),
    model=model,
    rows=rows,
    base_prefix="text_model.",
    embedding="text_model.embeddings.token_embedding.weight",
    heads={"CLIPTextModel": "", "CLIPTextModelWithProjection": "projection"},
    head_names=(r"text_projection\..*",),
    harmless=HARMLESS,
    ignored=IGNORED,
)
"""The family that `model_type: clip_text_model` names."""
