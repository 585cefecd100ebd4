"""Inputs of the tiny speech models of `parity.tiny.speech`, and random weights for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROWS, FRAMES, SAMPLES, LENGTH = 2, 28, 400, 9
"""How many sounds there are; frames of a spectrogram, samples of a sound, tokens of a text."""


def save_random(config: Mapping[str, Any], folder: Path) -> Any:
    """Write a model of transformers whose every tensor is random, and return its class."""
    import torch
    import transformers

    made = getattr(transformers, config["architectures"][0])
    model = made(made.config_class(**config))
    generator = np.random.default_rng(len(folder.name))
    with torch.no_grad():
        for name, tensor in sorted(model.named_parameters()):
            noise = generator.standard_normal(tuple(tensor.shape))
            if tensor.ndim < 2 or name.endswith("original0"):
                drawn = 0.2 * noise + (not name.endswith("bias"))
            else:
                drawn = noise * 1.2 / np.sqrt(np.prod(tensor.shape[1:]))
            tensor.copy_(torch.tensor(drawn))
    model.save_pretrained(folder)
    return made


def batch(names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return inputs by their names."""
    generator = np.random.default_rng(3)
    found: dict[str, np.ndarray] = {}
    if "input_features" in names:
        found["input_features"] = generator.standard_normal((ROWS, 10, FRAMES)).astype(np.float32)
        found["decoder_input_ids"] = generator.integers(0, 61, (ROWS, LENGTH))
    else:
        found["input_values"] = generator.standard_normal((ROWS, SAMPLES)).astype(np.float32)
        mask = np.ones((ROWS, SAMPLES), np.int64)
        mask[1, 287:] = 0
        found["attention_mask"] = mask
    return found
