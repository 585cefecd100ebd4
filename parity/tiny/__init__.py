"""Small random models, one for each thing that a port gets wrong, written by transformers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity import random_models
from parity.subject import Subject, load_subject
from parity.tiny import speech, text, traced, vision

NATIVE: Mapping[str, Mapping[str, Any]] = {**text.MODELS, **vision.MODELS, **speech.MODELS}
MODELS: Mapping[str, Mapping[str, Any]] = {**NATIVE, **traced.MODELS}
"""Name to config.json: models of the native families, then those that go by tracing."""


def write(name: str, directory: Path, *, seed: int) -> Path:
    """Write the model `name` of `MODELS` into a folder of `directory` and return that folder."""
    folder = directory / name.replace(" ", "-")
    return random_models.save_random(MODELS[name], folder, seed=seed + zlib.crc32(name.encode()))


def subject(name: str, directory: Path, *, seed: int) -> Subject:
    """Write the model `name` into a folder of `directory` and return the subject of it."""
    folder = write(name, directory, seed=seed)
    return load_subject(folder, name=name, image_size=vision.SIZES.get(name))
