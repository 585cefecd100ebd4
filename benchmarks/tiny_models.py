"""Small random models of every type that transformers and torchvision know, and inputs for them."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).with_name("tiny_configs.json")
VOCABULARY, LENGTH, IMAGE = 50, 16, 32

# What a config's integers shrink to where no config of the table builds the type.
_SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "d_model": 64,
    "dim": 64,
    "n_embd": 64,
    "embed_dim": 64,
    "intermediate_size": 128,
    "ffn_dim": 128,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "image_size": IMAGE,
    "patch_size": 8,
    "projection_dim": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_mel_bins": 16,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
}


def known_types() -> list[str]:
    """Return every model type of the installed transformers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted({*CONFIG_MAPPING_NAMES, *json.loads(CONFIGS.read_text())})


def vision_models() -> list[str]:
    """Return torchvision's classifiers, segmenters and detectors, and timm's where it is there."""
    import torchvision

    names = [f"torchvision:{name}" for name in torchvision.models.list_models()]
    return [name for name in names if "quantized" not in name]


def built(kind: str) -> tuple[Any, dict[str, Any]]:
    """Return a small model of a type, in evaluation mode, and example inputs by name."""
    import torch

    torch.manual_seed(0)
    if kind.startswith("torchvision:"):
        return _vision(kind.partition(":")[2])
    module, shapes = _transformer(kind)
    module = module.eval()
    with contextlib.suppress(AttributeError, ValueError):  # not every model has a choice
        module.set_attn_implementation("eager")
    for part in module.modules():
        config = getattr(part, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False
    _disturb(module)
    vocabulary = getattr(module.config.get_text_config(), "vocab_size", None) or VOCABULARY
    small = min(vocabulary, VOCABULARY)
    return module, {name: _value(name, shape, small) for name, shape in shapes.items()}


def _transformer(kind: str) -> tuple[Any, Mapping[str, list[int]]]:
    import transformers

    known = json.loads(CONFIGS.read_text()).get(kind)
    if known is not None:
        cls = getattr(transformers, known["cls"])
        config = cls.config_class(**known["config_kwargs"])
        return cls(config), known["input_shapes"] or _shapes(cls)
    config = _shrunk(transformers.CONFIG_MAPPING[kind]())
    module = transformers.AutoModel.from_config(config)
    return module, _shapes(type(module))


def _shrunk(config: Any) -> Any:
    for name, value in list(vars(config).items()):
        if hasattr(value, "model_type"):
            _shrunk(value)
        elif isinstance(value, int) and not isinstance(value, bool) and name in _SMALL:
            setattr(config, name, _SMALL[name])
    return config


def _shapes(cls: Any) -> dict[str, list[int]]:
    """Return shapes for the inputs that a class wants at least, by their usual names."""
    usual = {
        "input_ids": [2, LENGTH],
        "pixel_values": [2, 3, IMAGE, IMAGE],
        "input_values": [2, 800],
        "input_features": [2, 16, 64],
        "inputs_embeds": [2, LENGTH, 64],
    }
    name = getattr(cls, "main_input_name", "input_ids")
    return {name: usual.get(name, [2, LENGTH])}


def _vision(name: str) -> tuple[Any, dict[str, Any]]:
    import torch
    import torchvision

    module = torchvision.models.get_model(name, weights=None).eval()
    _disturb(module)
    size = 299 if "inception" in name else 224
    clip = name.startswith(("r3d", "mc3", "r2plus1d", "s3d", "mvit_v1", "mvit_v2", "swin3d"))
    shape = (1, 3, 16, 112, 112) if clip else (1, 3, size, size)
    argument = "images" if "rcnn" in name or name.startswith(("ssd", "fcos", "retina")) else "x"
    return module, {argument: torch.randn(shape, generator=torch.Generator().manual_seed(1))}


def _disturb(module: Any) -> None:
    """Move every weight a little: zeros and ones as initial values would hide errors."""
    import torch

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.05 * noise.to(parameter.dtype))


def _value(name: str, shape: list[int], vocabulary: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    if "bool_masked" in name:
        return torch.zeros(shape, dtype=torch.bool)
    if name.endswith("mask") and "pixel_values" not in name:
        return torch.ones(shape, dtype=torch.long)
    if name == "position_ids":
        return torch.arange(shape[-1]).expand(shape).clone()
    if name in ("token_type_ids", "bbox"):
        return torch.zeros(shape, dtype=torch.long)
    if name.endswith("ids") or name == "labels":
        return torch.randint(0, vocabulary, shape, generator=generator)
    return torch.randn(shape, generator=generator)
