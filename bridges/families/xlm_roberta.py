"""XLM-RoBERTa: RoBERTa under another name."""

from __future__ import annotations

import dataclasses

from bridges.config import Keys
from bridges.families import roberta
from bridges.family import Family
from bridges.text_encoders import architectures
from dew.nn.backbones.text_encoder import TextEncoder


def model(keys: Keys) -> TextEncoder:
    """Return the model that an XLM-RoBERTa config describes; defaults are `XLMRobertaConfig`'s."""
    return roberta.read_roberta(keys, vocab_size=30522)


FAMILY: Family = dataclasses.replace(
    roberta.FAMILY,
    model_type="xlm-roberta",
    architectures=("XLMRobertaModel",),
    model=model,
    heads=architectures("XLMRoberta"),
)
"""The family that `model_type: xlm-roberta` names."""
