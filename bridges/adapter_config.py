"""PEFT's adapter_config.json: what of it dew follows, and what it writes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bridges.adapter_patterns import NamePattern
from bridges.adapter_settings import ALL, BIASES, STARTS, AdapterSettings, Names, ends, is_name
from bridges.config import Keys, read_all
from bridges.files.json_file import read_json
from bridges.files.regular_file import contained, shown_path
from dew.errors import InputRefused, listed, shown

CONFIG = "adapter_config.json"
# Bookkeeping: a finished adapter computes the same whatever they say.
_HARMLESS = """
auto_mapping base_model_name_or_path corda_config eva_config fan_in_fan_out inference_mode
loftq_config lora_ga_config megatron_config megatron_core peft_type peft_version
qalora_group_size revision task_type
"""
HARMLESS = frozenset(_HARMLESS.split())
# Ways to begin that leave the base weights alone: nothing of them is left in a trained adapter.
_FORGOTTEN = ("eva", "orthogonal", "mica")


def read_adapter_config(folder: Path, source: str) -> AdapterSettings:
    """Read and check the config of an adapter.

    Args:
        folder: the adapter's folder.
        source: where the base model came from; a warning says when the adapter names another.

    Raises:
        InputRefused: an adapter of another kind than LoRA, a setting that dew does not compute, a
            rank below 1, an expression that dew does not match.
    """
    config = read_json(contained(folder, CONFIG))
    where = shown_path(folder / CONFIG)
    settings, keys = read_all(config, where, _settings)
    unread = keys.unread(HARMLESS)
    if unread:
        warnings.warn(
            listed(f"{where}: keys that dew does not follow:", [shown(k)[1:-1] for k in unread]),
            stacklevel=3,
        )
    _warn_of_other_base(keys, source)
    return settings


def adapter_config(
    settings: AdapterSettings, *, source: str, conv1d: bool, task_type: str | None
) -> dict[str, Any]:
    """Return the adapter_config.json of an adapter.

    Args:
        settings: its numbers and modules.
        source: where the base model came from.
        conv1d: whether the base stores kernels as [inputs, outputs].
        task_type: PEFT's name for what the base does, or None.
    """
    return {
        "peft_type": "LORA",
        "task_type": task_type,
        "base_model_name_or_path": source or None,
        "r": settings.rank,
        "lora_alpha": _whole(settings.alpha),
        "lora_dropout": settings.dropout,
        "target_modules": list(settings.targets or ()),
        "exclude_modules": None,
        "rank_pattern": settings.ranks,
        "alpha_pattern": {name: _whole(alpha) for name, alpha in settings.alphas.items()},
        "fan_in_fan_out": conv1d,
        "bias": settings.bias,
        "use_rslora": settings.rslora,
        "use_dora": settings.dora,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": list(settings.saved) or None,
        "layers_to_transform": None,
        "layers_pattern": None,
        "revision": None,
        "auto_mapping": None,
    }


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


def _settings(keys: Keys) -> AdapterSettings:
    """Return the settings that a config's keys give."""
    keys.only("peft_type", "LORA")
    for key in ("lora_bias", "use_qalora", "use_bdlora", "ensure_weight_tying"):
        keys.only(key, False)
    keys.only("target_parameters", [])
    for key in ("layer_replication", "arrow_config", "trainable_token_indices"):
        keys.only(key)
    for key in ("alora_invocation_tokens", "kasa_config", "monteclora_config", "velora_config"):
        keys.only(key)
    dropout = keys.number("lora_dropout", 0.0, low=0.0)
    if dropout >= 1:
        keys.refuse("lora_dropout", "expected from 0 to below 1")
    return AdapterSettings(
        rank=keys.integer("r", 8),
        alpha=keys.number("lora_alpha", 8, low=0.0),
        targets=_targets(keys),
        ranks=_pattern(keys, "rank_pattern", whole=True),
        alphas=_pattern(keys, "alpha_pattern", whole=False),
        rslora=keys.flag("use_rslora", False),
        dropout=dropout,
        dora=keys.flag("use_dora", False),
        saved=keys.words("modules_to_save"),
        bias=_choice(keys, "bias", BIASES, "none"),
        layers=_layers(keys),
        layers_pattern=_texts(keys, "layers_pattern"),
        excluded=_modules(keys, "exclude_modules") or (),
        start=_start(keys),
    )


def _targets(keys: Keys) -> Names | None:
    """Return the target modules: names, or one expression; None for all linear maps."""
    value = keys.values.get("target_modules")
    if value is None or (isinstance(value, str) and value.lower() == ALL):
        keys.only("target_modules", value)
        return None
    return _modules(keys, "target_modules")


def _modules(keys: Keys, key: str) -> Names | None:
    """Return a list of module names, or one expression over whole names."""
    value = keys.values.get(key)
    keys.only(key, value)
    if value is None:
        return None
    if isinstance(value, str):
        _checked(keys, key, value)
        return value
    names = [str(name) for name in value] if isinstance(value, list) else []
    if (not names and key == "target_modules") or names != value:
        keys.refuse(
            key, f"expected a list of module names such as ['q_proj'], an expression, or {ALL!r}"
        )
    if not all(is_name(name) for name in names):
        keys.refuse(key, "in a list stand names; an expression stands alone, as one text")
    return tuple(names)


def _checked(keys: Keys, key: str, expression: str) -> None:
    try:
        NamePattern(expression, key)
    except InputRefused as error:
        keys.refuse(key, str(error).rpartition(" is no expression that ")[2] or str(error))


def _pattern(keys: Keys, key: str, *, whole: bool) -> dict[str, Any]:
    """Return expressions over the ends of module names, and a number for each."""
    section = keys.section(key)
    found = {}
    for name in section.values:
        _checked(section, name, name)
        found[name] = section.integer(name) if whole else section.number(name, low=0.0)
    return found


def _texts(keys: Keys, key: str) -> tuple[str, ...]:
    """Return a list of plain names, or the one name that stands for it."""
    value = keys.values.get(key)
    names = (keys.text(key),) if isinstance(value, str) else keys.words(key)
    if not all(is_name(name) for name in names if name):
        keys.refuse(key, "expected the name of the list of the layers, such as 'layers'")
    return tuple(name for name in names if name)


def _layers(keys: Keys) -> tuple[int, ...] | None:
    """Return the numbers of the adapted layers; None, as an empty list, for all."""
    value = keys.values.get("layers_to_transform")
    if type(value) is int:
        return (keys.integer("layers_to_transform", low=0),)
    keys.only("layers_to_transform", value)
    if value is None or value == []:
        return None
    if not isinstance(value, list) or any(type(n) is not int or n < 0 for n in value):
        keys.refuse("layers_to_transform", "expected a layer's number, or a list of them")
    return tuple(value)


def _choice(keys: Keys, key: str, known: Sequence[str], default: str) -> str:
    value = keys.text(key, default)
    if value not in known:
        keys.refuse(key, f"expected {', '.join(known)}")
    return value


def _start(keys: Keys) -> bool | str:
    """Return how the adapter began; it counts where the first A and B left the base weights."""
    value = keys.values.get("init_lora_weights")
    keys.only("init_lora_weights", value)
    if value is None or value in _FORGOTTEN:
        return True
    if not any(value == known and type(value) is type(known) for known in STARTS):
        known = ", ".join(shown(start) for start in (*STARTS, *_FORGOTTEN))
        keys.refuse("init_lora_weights", f"dew follows only {known}")
    return value


def _warn_of_other_base(keys: Keys, source: str) -> None:
    """Warn when the adapter was made for another base; that base is never opened."""
    base = keys.text("base_model_name_or_path", None)
    if base is None or base == source:
        return
    if os.path.abspath(base) != os.path.abspath(source):
        warnings.warn(
            f"{keys.where}: the adapter was made for {shown(base)}, it is laid over "
            f"{shown(source)}; check that these are the same weights",
            stacklevel=4,
        )


def refuse_targets(settings: AdapterSettings, modules: tuple[str, ...], where: str) -> None:
    """Refuse a config whose target modules are not those that have tensors.

    Args:
        settings: the config's.
        modules: full names of the modules with tensors.
        where: the config's file.
    """
    if settings.targets is None:
        return
    idle = []
    if not isinstance(settings.targets, str):
        known = [name for module in modules for name in settings.names(module)]
        idle = [name for name in settings.targets if not any(ends(m, name) for m in known)]
    problems = [f"{shown(name)} is a target without tensors" for name in idle]
    extra = [m for m in modules if not settings.chooses(m)]
    problems += [f"{module} has tensors but is no target" for module in extra]
    if problems:
        raise InputRefused(
            listed(f"{where}: target_modules and the adapter's tensors disagree:", problems)
        )
