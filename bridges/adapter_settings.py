"""What PEFT's LoRA config asks for: ranks, scales, and which modules it chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bridges.adapter_patterns import NamePattern

ALL = "all-linear"
BIASES = ("none", "all", "lora_only")
TASK_HEADS = {"classifier", "score", "qa_outputs"}
"""The heads that PEFT adds for some tasks, whatever a model calls its own."""
HEADED = {
    "text-classification",
    "token-classification",
    "question-answering",
    "image-classification",
}
"""The tasks whose head a finished base model need not have."""
RESIDUAL = ("pissa", "olora")
"""Ways to begin that take the first A and B out of the base weights."""
STARTS = (True, False, "gaussian", *RESIDUAL)
"""Ways to begin that dew computes, by PEFT's names."""

Names = str | tuple[str, ...]


@dataclass(frozen=True)
class AdapterSettings:
    """What an adapter_config.json asks for, or a training run.

    Attributes:
        rank: R of every module that `ranks` does not name.
        alpha: of every module that `alphas` does not name; the scale is alpha / R.
        targets: names of modules, or the ends of names at a dot; a text is one regular expression
            that a whole name matches; None for every linear map of the layers.
        ranks: other ranks, by regular expressions that match the end of a name.
        alphas: other alphas, likewise.
        rslora: whether the scale is alpha / sqrt(R) (rank-stabilised) instead.
        dropout: the share of a map's inputs that the adapter does not see in a step.
        dora: whether each output has a trained magnitude (weight-decomposed).
        saved: modules that are trained whole, by the ends of their names.
        bias: which biases are trained: "none", "all" or "lora_only", those of adapted modules.
        layers: numbers of the only layers that are adapted, or None.
        layers_pattern: what the list of the layers is called; empty for any name.
        excluded: modules that are not adapted, as `targets`.
        start: how A and B begin, one of `STARTS`.
        also: second names of modules, by which the settings may mean them too.
    """

    rank: int
    alpha: float
    targets: Names | None = None
    ranks: dict[str, int] = field(default_factory=dict)
    alphas: dict[str, float] = field(default_factory=dict)
    rslora: bool = False
    dropout: float = 0.0
    dora: bool = False
    saved: tuple[str, ...] = ()
    bias: str = "none"
    layers: tuple[int, ...] | None = None
    layers_pattern: tuple[str, ...] = ()
    excluded: Names = ()
    start: bool | str = True
    also: Mapping[str, str] = field(default_factory=dict)

    def names(self, module: str) -> tuple[str, ...]:
        """Return the names of one module."""
        return (module, self.also[module]) if module in self.also else (module,)

    def rank_of(self, module: str) -> int:
        """Return the rank of one module."""
        return _first(self._rank_patterns, self.names(module), self.rank)

    def alpha_of(self, module: str) -> float:
        """Return the alpha of one module."""
        return _first(self._alpha_patterns, self.names(module), self.alpha)

    def scale_of(self, module: str) -> float:
        """Return the factor on the low-rank path of one module."""
        return scale(self.rank_of(module), self.alpha_of(module), self.rslora)

    def is_saved(self, module: str) -> bool:
        """Say whether a module is trained whole, itself or within another, as PEFT matches it."""
        return any(self.saves(name, module) for name in self.saved)

    @staticmethod
    def saves(name: str, module: str) -> bool:
        """Say whether one name of modules to save means a module."""
        parts = module.split(".")
        return any(".".join(parts[: n + 1]).endswith(name) for n in range(len(parts)))

    def chooses(self, module: str) -> bool:
        """Say whether a linear map is adapted, by its full name.

        Source: `check_target_module_exists` of peft 0.21.
        """
        return any(self._chooses(name) for name in self.names(module))

    def _chooses(self, module: str) -> bool:
        if _names(self.excluded, self._excluded, module) or self.is_saved(module):
            return False
        if self.targets is None:
            return True
        if not _names(self.targets, self._targets, module):
            return False
        # PEFT reads the layers' numbers beside a list of names alone.
        return isinstance(self.targets, str) or self.layers is None or self._in_layers(module)

    def _in_layers(self, module: str) -> bool:
        parts = module.split(".")
        for place, part in enumerate(parts[:-1]):
            before = ".".join(parts[:place])
            listed_here = not self.layers_pattern or any(
                ends(before, name) for name in self.layers_pattern
            )
            # PEFT's pattern wants two names before the number where none is given.
            if part.isdecimal() and listed_here and (self.layers_pattern or place > 1):
                return int(part) in (self.layers or ())
        return False

    @cached_property
    def _rank_patterns(self) -> list[tuple[NamePattern, int]]:
        return [(NamePattern(key, "rank_pattern"), rank) for key, rank in self.ranks.items()]

    @cached_property
    def _alpha_patterns(self) -> list[tuple[NamePattern, float]]:
        return [(NamePattern(key, "alpha_pattern"), a) for key, a in self.alphas.items()]

    @cached_property
    def _targets(self) -> NamePattern | None:
        return NamePattern(self.targets) if isinstance(self.targets, str) else None

    @cached_property
    def _excluded(self) -> NamePattern | None:
        if not isinstance(self.excluded, str):
            return None
        return NamePattern(self.excluded, "exclude_modules")


def scale(rank: int, alpha: float, rslora: bool) -> float:
    """Return the factor on the low-rank path: alpha / R, or alpha / sqrt(R)."""
    return alpha / (math.sqrt(rank) if rslora else rank)


def ends(module: str, name: str) -> bool:
    """Say whether `module` is `name` or ends in it at a dot, which is how PEFT matches names."""
    return module == name or module.endswith(f".{name}")


def is_name(name: str) -> bool:
    """Say whether a text is a module's name or the end of one, and no expression."""
    return all(part.isidentifier() or part.isdecimal() for part in name.split("."))


def _first(patterns: Sequence[tuple[NamePattern, Any]], names: Sequence[str], default: Any) -> Any:
    found = (v for pattern, v in patterns if any(pattern.matches_end(name) for name in names))
    return next(found, default)


def _names(names: Names, pattern: NamePattern | None, module: str) -> bool:
    if pattern is not None:
        return pattern.fullmatch(module)
    return any(ends(module, name) for name in names)
