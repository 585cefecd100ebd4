"""Seeded weights for the networks of image metrics, by the names that PyTorch gives them."""

from __future__ import annotations

from typing import Any

import numpy as np


def seeded_state(module: Any, seed: int = 0) -> dict[str, Any]:
    """Return a torch module's state dict, redrawn so that signals neither die nor grow.

    torch's own initial weights shrink the features of a deep network to nothing, and a comparison
    of nothing shows nothing.
    """
    import torch

    generator = np.random.default_rng(seed)
    state = {}
    for name, value in module.state_dict().items():
        shape = tuple(value.shape)
        if name.endswith("num_batches_tracked"):
            drawn = np.int64(1)
        elif len(shape) > 1:
            drawn = generator.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
        elif name.endswith("running_var") or (".bn." in name and name.endswith("weight")):
            drawn = generator.uniform(0.5, 1.5, shape)
        else:
            drawn = generator.normal(0, 0.1, shape)
        state[name] = torch.from_numpy(np.asarray(drawn)).to(value.dtype)
    return state


def pictures(count: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return uint8 [count, height, width, 3]: smooth colours with some noise on them."""
    generator = np.random.default_rng(seed)
    rows, columns = np.linspace(0, 6, height), np.linspace(0, 6, width)
    phases = generator.uniform(0, 6, (2, count, 1, 1, 3))
    waves = np.sin(rows[None, :, None, None] + phases[0])
    waves = waves * np.cos(columns[None, None, :, None] + phases[1])
    noisy = 127.5 + 90 * waves + generator.normal(0, 12, waves.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def as_floats(levels: np.ndarray) -> np.ndarray:
    """Return bytes as the floats in [-1, 1] that `uint8_pixels` gives back unchanged."""
    return (levels / 127.5 - 1).astype(np.float32)
