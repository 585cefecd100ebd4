"""PEFT's adapter_config.json: what of it dew follows, and what it writes."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridges.config import Keys, read_all
from bridges.files.json_file import read_json
from bridges.files.regular_file import contained, shown_path
from dew.errors import InputRefused, listed, shown

CONFIG = "adapter_config.json"
ALL = "all-linear"
# Training-time settings and bookkeeping: a finished adapter computes the same whatever they say.
_HARMLESS = """
auto_mapping base_model_name_or_path corda_config eva_config fan_in_fan_out inference_mode
init_lora_weights loftq_config lora_dropout lora_ga_config megatron_config megatron_core
peft_type peft_version revision task_type ensure_weight_tying
"""
HARMLESS = frozenset(_HARMLESS.split())


@dataclass(frozen=True)
class AdapterSettings:
    """What an adapter_config.json asks for.

    Attributes:
        rank: R of every module that `ranks` does not name.
        alpha: of every module that `alphas` does not name; the scale is alpha / R.
        targets: names of modules, or the ends of names; None for every linear map of the layers.
        ranks: other ranks, by the end of a module's name.
        alphas: other alphas, likewise.
        root: whether the scale is alpha / sqrt(R) (rank-stabilised) instead.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] | None
    ranks: dict[str, int]
    alphas: dict[str, float]
    root: bool = False

    def rank_of(self, module: str) -> int:
        """Return the rank of one module."""
        return next((r for end, r in self.ranks.items() if ends(module, end)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor on the low-rank path of one module."""
        alpha = next((a for end, a in self.alphas.items() if ends(module, end)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.root else rank)


def ends(module: str, name: str) -> bool:
    """Say whether `module` is `name` or ends in it at a dot, which is how PEFT matches names."""
    return module == name or module.endswith(f".{name}")


def read_adapter_config(folder: Path, source: str) -> AdapterSettings:
    """Read and check the config of an adapter.

    Args:
        folder: the adapter's folder.
        source: where the base model came from; a warning says when the adapter names another.

    Raises:
        InputRefused: an adapter of another kind than LoRA, a setting that dew does not compute, a
            rank below 1, a pattern in the place of names.
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


def adapter_config(settings: AdapterSettings, *, source: str, conv1d: bool) -> dict[str, Any]:
    """Return the adapter_config.json of an adapter.

    Args:
        settings: its numbers and modules.
        source: where the base model came from.
        conv1d: whether the base stores kernels as [inputs, outputs].
    """
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": source or None,
        "r": settings.rank,
        "lora_alpha": int(settings.alpha)
        if settings.alpha == int(settings.alpha)
        else settings.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(settings.targets or ()),
        "rank_pattern": settings.ranks,
        "alpha_pattern": settings.alphas,
        "fan_in_fan_out": conv1d,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "layers_to_transform": None,
        "layers_pattern": None,
        "revision": None,
        "auto_mapping": None,
    }


def _settings(keys: Keys) -> AdapterSettings:
    """Return the settings that a config's keys give."""
    keys.only("peft_type", "LORA")
    keys.only("bias", "none")
    for key in ("use_dora", "lora_bias", "use_qalora"):
        keys.only(key, False)
    for key in ("modules_to_save", "exclude_modules", "target_parameters"):
        keys.only(key, [])
    for key in ("layers_to_transform", "layers_pattern", "layer_replication", "arrow_config"):
        keys.only(key)
    for key in ("trainable_token_indices", "alora_invocation_tokens"):
        keys.only(key)
    return AdapterSettings(
        rank=keys.integer("r", 8),
        alpha=keys.number("lora_alpha", 8, low=0.0),
        targets=_targets(keys),
        ranks=_pattern(keys, "rank_pattern", whole=True),
        alphas=_pattern(keys, "alpha_pattern", whole=False),
        root=keys.flag("use_rslora", False),
    )


def _targets(keys: Keys) -> tuple[str, ...] | None:
    """Return the target modules: a list of names; a pattern is never evaluated."""
    value = keys.values.get("target_modules")
    if value is None or value == ALL:
        keys.only("target_modules", ALL)
        return None
    keys.only("target_modules", value)
    names = [str(name) for name in value] if isinstance(value, list) else []
    if not names or names != value or not all(_is_name(name) for name in names):
        keys.refuse(
            "target_modules",
            f"expected a list of module names such as ['q_proj'], or {ALL!r}; "
            "patterns are not evaluated",
        )
    return tuple(names)


def _is_name(name: str) -> bool:
    return all(part.isidentifier() or part.isdecimal() for part in name.split("."))


def _pattern(keys: Keys, key: str, *, whole: bool) -> dict[str, Any]:
    """Return module name to number; like targets, names are not patterns."""
    section = keys.section(key)
    found = {}
    for name in section.values:
        if not _is_name(name):
            section.refuse(name, "expected the name of a module as key; patterns are not evaluated")
        found[name] = section.integer(name) if whole else section.number(name, low=0.0)
    return found


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
        modules: full names of the modules with tensors, `{layer}` for the layer's number.
        where: the config's file.
    """
    if settings.targets is None:
        return
    idle = [name for name in settings.targets if not any(ends(m, name) for m in modules)]
    extra = [m for m in modules if not any(ends(m, name) for name in settings.targets)]
    problems = [f"{shown(name)} is a target without tensors" for name in idle]
    problems += [f"{module} has tensors but is no target" for module in extra]
    if problems:
        raise InputRefused(
            listed(f"{where}: target_modules and the adapter's tensors disagree:", problems)
        )
