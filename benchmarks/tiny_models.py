"""Small random models of every type that transformers and torchvision know, and inputs for them."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import re
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).with_name("tiny_configs.json")
VOCABULARY, LENGTH, IMAGE, GRID = 50, 16, 64, 4
_COUNTED = re.compile(r"tokens: 0, (?:image |audio )?features:? (\d+)", re.IGNORECASE)
_USUAL = frozenset(
    ("input_ids", "pixel_values", "input_features", "input_values", "decoder_input_ids", "bbox")
)

_ERRING = (
    *("levit", "xcit", "efficientformer_", "iformer", "efficientvit_m", "efficientvim"),
    *("fasternet", "legacy_seresnet"),
)
_CLIPS = ("r3d", "mc3", "r2plus1d", "s3d", "mvit_v1", "mvit_v2", "swin3d")
_SIZES = ("test_", "atto", "femto", "pico", "nano", "xxt", "xxs", "tiny", "xs", "small", "18", "_s")
_DETECTORS = ("fasterrcnn", "maskrcnn", "keypointrcnn", "ssd", "fcos", "retinanet")

_DEEP = re.compile(r"(layers|depth|num_blocks)$")
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
    "n_group": 1,
    "topk_group": 1,
    "num_mel_bins": 16,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
}


def known_types() -> list[str]:
    """Return every model type of the installed transformers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted({*CONFIG_MAPPING_NAMES, *json.loads(CONFIGS.read_text())})


def vision_models() -> list[str]:
    """Return torchvision's models, and one timm model of every architecture file."""
    import timm
    import torchvision

    names = [f"torchvision:{name}" for name in torchvision.models.list_models()]
    smallest = {}
    for module in sorted(timm.list_modules()):
        found = timm.list_models(module=module)
        if found:
            smallest[module] = min(found, key=_size)
    timms = [f"timm:{name}" for name in smallest.values()]
    return [name for name in names if "quantized" not in name] + timms


def _size(name: str) -> tuple[int, str]:
    """Return what sorts names of timm's models by their sizes, as far as names tell."""
    ranks = (rank for rank, word in enumerate(_SIZES) if word in name)
    return next(ranks, len(_SIZES)), name


def built(kind: str, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """Return a small model of a type, in evaluation mode, and example inputs by name.

    Args:
        kind: a model type of transformers, or `torchvision:` or `timm:` and a model's name.
        seed: of the weights.
    """
    import torch

    torch.manual_seed(seed)
    if kind.startswith(("torchvision:", "timm:")):
        return _vision(kind, seed)
    module, shapes = _transformer(kind)
    module = module.eval()
    with contextlib.suppress(AttributeError, ValueError):  # not every model has a choice
        module.set_attn_implementation("eager")
    for part in module.modules():
        config = getattr(part, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False
    _disturb(module, seed)
    return module, _accepted(module, shapes) if shapes else first_that_runs(module)


def _transformer(kind: str) -> tuple[Any, Mapping[str, list[int]] | None]:
    import transformers

    known = json.loads(CONFIGS.read_text()).get(kind)
    if known is not None:
        cls = _class_named(known["cls"], kind)
        config = cls.config_class(**(known["config_kwargs"] | _untied(known["config_kwargs"])))
        return cls(config), known["input_shapes"]
    config = _shrunk(transformers.CONFIG_MAPPING[kind]())
    try:
        return transformers.AutoModel.from_config(config), None
    except ValueError:  # a part of a larger model, which no auto class gives
        return _class_for(config)(config), None


def _untied(fields: Mapping[str, Any]) -> dict[str, int]:
    """Return what keeps an indexer's scores apart: with few heads, all are often cut to zero."""
    return {"index_n_heads": 16} if "index_n_heads" in fields else {}


def _class_named(name: str, kind: str) -> Any:
    import transformers

    found = getattr(transformers, name, None)
    return found or getattr(_modeling(transformers.CONFIG_MAPPING[kind]), name)


def _class_for(config: Any) -> Any:
    """Return the class of a config's own module that is made from it, the barest by its name."""
    parts = vars(_modeling(type(config))).values()
    made = [
        part
        for part in parts
        if isinstance(part, type) and getattr(part, "config_class", None) is type(config)
    ]
    if not made:
        raise ValueError(f"no class is made from {type(config).__name__}")
    made.sort(key=lambda cls: ("PreTrained" in cls.__name__, "For" in cls.__name__))
    return made[0]


def _modeling(config_class: type) -> Any:
    return importlib.import_module(config_class.__module__.replace(".configuration_", ".modeling_"))


def _shrunk(config: Any) -> Any:
    for name, value in list(vars(config).items()):
        if hasattr(value, "model_type"):
            _shrunk(value)
        elif isinstance(value, int) and not isinstance(value, bool) and name in _SMALL:
            setattr(config, name, _SMALL[name])
        elif type(value) is int and _DEEP.search(name):
            setattr(config, name, min(value, 2))
    if hasattr(config, "qk_rope_head_dim"):
        parts = {"head_dim": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
        config.update({**parts, "qk_head_dim": 32, "num_key_value_heads": 4})
        config.update({"num_experts_per_tok": 2})
    size = getattr(config, "vocab_size", None)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        number = getattr(config, name, None)
        if isinstance(size, int) and isinstance(number, int) and number >= size:
            setattr(config, name, 0)
    return config


def first_that_runs(module: Any) -> dict[str, Any]:
    """Return the fewest inputs that a module's forward accepts, by their usual names.

    Raises:
        Exception: what the last try raised, where none is accepted.
    """
    taken = set(inspect.signature(module.forward).parameters)
    main = getattr(module, "main_input_name", "input_ids")
    tries = [
        {main},
        {main, *(name for name in taken if name.endswith("mask") and "bool" not in name)},
        {main, "decoder_input_ids"},
        {"input_ids", "pixel_values"},
        {"input_ids", "input_features"},
        {"input_ids", "input_values"},
        {"input_ids", "pixel_values", "bbox"},
        {"hidden_states"},
        {"inputs_embeds"},
        {"hidden_states", "grid_thw"},
        {main, "grid_thw"},
        {"pixel_values", "grid_thw"},
        {name for name in taken if name in _USUAL},
        {"pixel_values", "image_grid_thw", "input_ids"},
        {"pixel_values", "image_grid_thw", "input_ids", "mm_token_type_ids"},
    ]
    last: Exception | None = None
    for names in tries:
        if not names <= taken:
            continue
        try:
            return _accepted(module, {name: _shape(module, name) for name in sorted(names)})
        except Exception as error:
            last = error
    raise last or ValueError(f"{type(module).__name__} takes {sorted(taken)}")


def _accepted(module: Any, shapes: Mapping[str, list[int]]) -> dict[str, Any]:
    """Run a module on inputs; where it counts image tokens, give it as many as it asks for."""
    taken = inspect.signature(module.forward).parameters
    if len(shapes.get("pixel_values", ())) == 2 and "image_grid_thw" in taken:
        shapes = {**shapes, "image_grid_thw": [2, 3]}
    inputs = {name: _value(module, name, shape) for name, shape in shapes.items()}
    try:
        module(**inputs)
        return inputs
    except ValueError as error:
        counted = _COUNTED.search(str(error))
        marker = _marker(module.config, shapes)
        if counted is None or marker is None:
            raise
    each = int(counted[1]) // len(inputs["input_ids"])
    width = _first(module.config.get_text_config(), ("hidden_size", "d_model")) or 1
    # Some count an image's places, some the numbers that stand there.
    for count in (each, each // width):
        marked = _with_markers(inputs, marker, count)
        with contextlib.suppress(ValueError, IndexError):
            module(**marked)
            return marked
    raise ValueError(f"neither {each} nor {each // width} image tokens are accepted")


def _marker(config: Any, names: Collection[str]) -> int | None:
    kinds = ("image", "audio") if "pixel_values" in names else ("audio",)
    for kind in kinds:
        for name in (f"{kind}_token_id", f"{kind}_token_index"):
            if isinstance(getattr(config, name, None), int):
                return getattr(config, name)
    return None


def _with_markers(inputs: Mapping[str, Any], marker: int, count: int) -> dict[str, Any]:
    """Return inputs whose ids hold a marker `count` times a row, after the second."""
    import torch

    ids = inputs["input_ids"]
    rest = ids[:, count + 2 :] if count + 2 < ids.shape[1] else ids[:, 2:]
    markers = torch.full((len(ids), count), marker)
    ids = torch.cat([ids[:, :2], markers, rest], dim=1)
    marked = {**inputs, "input_ids": ids}
    for name in marked:
        if name == "mm_token_type_ids":
            marked[name] = (ids == marker).long()
        elif name == "attention_mask":
            marked[name] = torch.ones_like(ids)
    return marked


def _shape(module: Any, name: str) -> list[int]:
    """Return a shape for an input by its usual name, as the model's config has it."""
    config = module.config
    vision = getattr(config, "vision_config", config)
    side = getattr(vision, "image_size", None) or IMAGE
    height, width = side if isinstance(side, list | tuple) else (side, side)
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    bins = _first(config, ("num_mel_bins", "feature_size", "input_feat_per_channel")) or 16
    text = config.get_text_config()
    width_of_states = _first(text, ("hidden_size", "d_model", "n_embd")) or 64
    if name in ("image_grid_thw", "grid_thw"):
        return [2, 3]
    if name == "hidden_states" or (
        name == "pixel_values" and hasattr(vision, "temporal_patch_size")
    ):
        patch = getattr(vision, "patch_size", None)
        frames = getattr(vision, "temporal_patch_size", 1)
        if isinstance(patch, int) and isinstance(frames, int) and isinstance(channels, int):
            return [2 * GRID * GRID, channels * frames * patch * patch]
    return {
        "pixel_values": [2, channels, height, width],
        "input_features": [2, bins, 64],
        "input_values": [2, 2000],
        "inputs_embeds": [2, LENGTH, width_of_states],
        "hidden_states": [2, LENGTH, width_of_states],
        "bbox": [2, LENGTH, 4],
        "input_features_mask": [2, 64],
        "padding_mask": [2, 2000],
        "pixel_mask": [2, height, width],
    }.get(name, [2, LENGTH])


def _first(config: Any, names: tuple[str, ...]) -> Any:
    parts = [config, *(getattr(config, f"{kind}_config", None) for kind in ("audio", "encoder"))]
    found = (getattr(part, name, None) for part in parts for name in names)
    return next((value for value in found if isinstance(value, int)), None)


def _vision(kind: str, seed: int) -> tuple[Any, dict[str, Any]]:
    import torch

    home, _, name = kind.partition(":")
    if home == "timm":
        import timm

        module, argument = timm.create_model(name, pretrained=False).eval(), "x"
        # torch 2.14 errs in a batch norm's gradient for one row that comes back transposed.
        rows = 2 if name.startswith(_ERRING) else 1
        shape = (rows, *module.default_cfg["input_size"])
    else:
        import torchvision

        built = torchvision.models.get_model_builder(name)
        backbone = "weights_backbone" in inspect.signature(built).parameters
        module = built(weights=None, **({"weights_backbone": None} if backbone else {})).eval()
        if name.startswith("raft"):
            _disturb(module, seed)
            pair = torch.randn(2, 1, 3, 128, 128, generator=torch.Generator().manual_seed(1))
            return module, {"image1": pair[0], "image2": pair[1]}
        whole = name.startswith(("vit_", "maxvit", "mvit", "s3d"))
        side = 224 if whole else 96 if "inception" in name else 64
        clip = name.startswith(_CLIPS)
        shape = (1, 3, 16, *(2 * (side if whole else 112,))) if clip else (1, 3, side, side)
        argument = "images" if name.startswith(_DETECTORS) else "x"
    _disturb(module, seed)
    return module, {argument: torch.randn(shape, generator=torch.Generator().manual_seed(1))}


def _disturb(module: Any, seed: int) -> None:
    """Move every weight a little: zeros and ones as initial values would hide errors."""
    import torch

    generator = torch.Generator().manual_seed(1 + seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.05 * noise.to(parameter.dtype))


def _value(module: Any, name: str, shape: list[int]) -> Any:
    import torch

    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    if "bool_masked" in name:
        return torch.zeros(shape, dtype=torch.bool)
    if name.endswith("grid_thw"):
        return torch.tensor([[1, GRID, GRID]] * shape[0])
    if name.endswith("mask") and "pixel_values" not in name:
        return torch.ones(shape, dtype=torch.long)
    if name == "position_ids":
        return torch.arange(shape[-1]).expand(shape).clone()
    if name.endswith("token_type_ids") or name == "bbox":
        return torch.zeros(shape, dtype=torch.long)
    if name.endswith("ids") or name == "labels":
        size = getattr(module.config.get_text_config(), "vocab_size", None) or VOCABULARY
        return torch.randint(0, min(size, VOCABULARY), shape, generator=generator)
    return torch.randn(shape, generator=generator)
