"""SigLIP's text tower alone."""

from __future__ import annotations

from bridges.config import Keys
from bridges.family import Family
from bridges.table import Row
from bridges.towers import HARMLESS, IGNORED, siglip_text, text_rows
from dew.nn.backbones.text_tower import TextTower


def model(keys: Keys) -> TextTower:
    """Return the model that a config of SigLIP's text tower describes."""
    return TextTower(spec=siglip_text(keys))


def rows(model: TextTower) -> tuple[Row, ...]:
    """Return the tower's tensors (theirs) and dew's leaves (ours)."""
    return tuple(text_rows(model, "text_model."))


FAMILY = Family(
    model_type="siglip_text_model",
    architectures=("SiglipTextModel",),
    model=model,
    rows=rows,
    base_prefix="text_model.",
    embedding="text_model.embeddings.token_embedding.weight",
    heads={"SiglipTextModel": ""},
    harmless=HARMLESS,
    ignored=IGNORED,
)
"""The family that `model_type: siglip_text_model` names."""
