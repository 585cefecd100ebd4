"""Models with random weights, written as transformers writes a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parity import reference


def save_random(config: Mapping[str, Any], directory: Path, *, seed: int) -> Path:
    """Write a model with random weights as transformers writes one, and return its folder.

    Weights are drawn so that a wrong port shows: no bias is 0, no norm scale is 1, and kernels
    are large enough for attention to prefer some positions.

    Args:
        config: a config.json, with its `model_type`; of a causal language model, where it names
            no `architectures`.
        directory: where to write.
        seed: of the numpy generator that draws every tensor in name order.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    options = dict(config)
    with reference.quiet():
        made = AutoConfig.for_model(options.pop("model_type"), **options)
        named = [reference.class_named(str(name)) for name in made.architectures or ()]
        model = named[0](made) if named else AutoModelForCausalLM.from_config(made)
        model = model.float()
    generator = np.random.default_rng(seed)
    statistics = [pair for pair in model.named_buffers() if "running_" in pair[0]]
    with torch.no_grad():
        for name, tensor in [*sorted(model.named_parameters()), *sorted(statistics)]:
            tensor.copy_(torch.tensor(drawn(name, tuple(tensor.shape), generator)))
    with reference.quiet():
        model.save_pretrained(directory)
    return Path(directory)


def drawn(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Return random float32 values for the tensor called `name`; a variance is positive."""
    noise = np.asarray(generator.standard_normal(shape), np.float32)
    if name.endswith("running_var"):
        return np.float32(0.5) + np.abs(noise)
    if len(shape) < 2:
        return np.float32(0.2) * noise + np.float32(name.endswith("weight"))
    if any(part in name for part in ("embed_tokens", "wte", "wpe", "lm_head")):
        return np.float32(0.3) * noise
    if name.endswith("Attention.q.weight"):
        # T5 does not divide its scores by the root of the head's width.
        return np.float32(0.3 / np.sqrt(shape[1])) * noise
    # A convolution sums over all but its first axis; else the smaller side is on the safe side.
    convolves = len(shape) == 4 or (len(shape) == 3 and "conv" in name)
    summed = np.prod(shape[1:]) if convolves else min(shape)
    return np.float32(1.5 / np.sqrt(summed)) * noise
