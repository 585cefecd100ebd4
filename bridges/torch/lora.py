"""Low-rank adapters of a traced module's linear maps, by torch's names: W + scale * B A."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.adapter_config import ALL, ends
from bridges.torch.checkpoint import TracedBundle
from bridges.torch.kinds import CONV1D, LINEAR, ModuleKinds
from bridges.torch.module import TracedModule
from dew.errors import InputRefused, UnknownName, listed, nearest, shown

Targets = str | Sequence[str]
MERGED = "lora"


@dataclasses.dataclass(frozen=True)
class Adapter:
    """Which linear maps of a traced module are adapted, and by how much.

    Attributes:
        rank: R.
        alpha: numerator of the scale.
        weights: each adapted module's name, and the leaf of `params` that is its weight.
        transposed: the modules that store their weight [inputs, outputs], as GPT-2's Conv1D.
        dropout: the share of a map's inputs that its low-rank product does not see in a step.

    Source: Hu et al. 2021, arXiv:2106.09685.
    """

    rank: int
    alpha: float
    weights: tuple[tuple[str, str], ...]
    transposed: frozenset[str] = frozenset()
    dropout: float = 0.0

    @property
    def scale(self) -> float:
        """Alpha / rank."""
        return self.alpha / self.rank

    @property
    def modules(self) -> tuple[str, ...]:
        """The adapted modules by torch's names."""
        return tuple(module for module, _ in self.weights)

    def init(self, key: jax.Array, params: Mapping[str, Any]) -> dict[str, dict[str, jax.Array]]:
        """Return the first adapters: A Kaiming uniform as torch's linear layers, B zero.

        Args:
            key: draws A.
            params: the module's, values or shapes.

        Returns:
            `{module: {"A": [R, inputs], "B": [outputs, R]}}`, float32.
        """
        tree = {}
        for number, (module, _) in enumerate(self.weights):
            outputs, inputs = self.sizes(module, params)
            # kaiming_uniform_ with a = sqrt(5): a bound of sqrt(6 / ((1 + 5) inputs)).
            bound = 1 / math.sqrt(inputs)
            drawn = jax.random.uniform(
                jax.random.fold_in(key, number), (self.rank, inputs), jnp.float32, -bound, bound
            )
            tree[module] = {"A": drawn, "B": jnp.zeros((outputs, self.rank), jnp.float32)}
        return tree

    def laid_over(
        self, params: Mapping[str, Any], adapters: Mapping[str, Any]
    ) -> dict[str, jax.Array]:
        """Return `params` with scale * B A added to every adapted weight, summed in float32.

        Pure: to be differentiated in `adapters`. Each weight keeps its dtype.

        Args:
            params: the module's.
            adapters: laid out as `init` gives them.
        """
        out = dict(params)
        for module, leaf in self.weights:
            pair, weight = adapters[module], params[leaf]
            low = self.scale * jnp.matmul(pair["B"], pair["A"], precision="highest")
            low = low.T if module in self.transposed else low
            out[leaf] = (weight.astype(jnp.float32) + low).astype(weight.dtype)
        return out

    def sizes(self, module: str, params: Mapping[str, Any]) -> tuple[int, int]:
        """Return the outputs and inputs of one adapted module."""
        shape = params[dict(self.weights)[module]].shape
        return (shape[1], shape[0]) if module in self.transposed else (shape[0], shape[1])


def adapter_of(
    source: TracedModule | TracedBundle,
    *,
    rank: int = 8,
    alpha: float = 8.0,
    targets: Targets = ALL,
    dropout: float = 0.0,
) -> Adapter:
    """Return the adapter of the modules that `targets` names, as PEFT reads them.

    Args:
        source: what `bridges.from_torch` or `bridges.load` gave.
        rank: R, at least 1.
        alpha: the scale is alpha / rank.
        targets: names or the ends of names at a dot, such as `("q_proj", "v_proj")`; or one text,
            a regular expression that a whole name matches; or "all-linear": every linear map but
            the model's output embedding.
        dropout: from 0 to below 1, in training alone.

    Raises:
        InputRefused: a rank below 1, a dropout out of its range, or targets that are no linear
            maps of their own, by name: embeddings, convolutions, a weight that several modules
            share.
        UnknownName: a target that no module has.
    """
    if rank < 1:
        raise InputRefused(f"LoRA rank is {shown(rank)}; it must be at least 1")
    if not 0 <= dropout < 1:
        raise InputRefused(f"LoRA dropout is {shown(dropout)}; it must be from 0 to below 1")
    kinds = module_kinds(source)
    chosen = _chosen(kinds, targets)
    shared = kinds.shared
    problems = [
        f"{name} is {_article(kinds.kinds[name])}"
        for name in chosen
        if kinds.kinds[name] not in (LINEAR, CONV1D)
    ]
    problems += [
        f"{name} shares its weight with {' and '.join(shared[name])}"
        for name in chosen
        if name in shared and kinds.kinds[name] in (LINEAR, CONV1D)
    ]
    if problems:
        raise InputRefused(
            listed(
                "LoRA adapts linear maps with a weight of their own; leave out of targets:",
                problems,
            )
        )
    return Adapter(
        rank=rank,
        alpha=float(alpha),
        weights=tuple((name, kinds.weight(name)) for name in chosen),
        transposed=frozenset(name for name in chosen if kinds.kinds[name] == CONV1D),
        dropout=float(dropout),
    )


def module_kinds(source: TracedModule | TracedBundle) -> ModuleKinds:
    """Return what each parameterised module of `source` is; a stored record needs no torch."""
    if isinstance(source, TracedBundle):
        return ModuleKinds.from_record(source.stored)
    return ModuleKinds.of(source.torch_module)


@dataclasses.dataclass(frozen=True, eq=False)
class AdaptedBundle(TracedBundle):
    """A traced model with an adapter laid over it: `variables["lora"]` and `adapter`."""

    def apply(self, variables: Any, **inputs: Any) -> dict[str, Any]:
        """Return the outputs for other variables: pure, to be jitted or differentiated."""
        return super().apply(self.effective(variables), **inputs)

    def generate(self, input_ids: Any, attention_mask: Any = None, **options: Any) -> np.ndarray:
        """Continue each prompt with the adapter merged; see `Bundle.generate`."""
        return self.merged.generate(input_ids, attention_mask, **options)

    def effective(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plain variables that the adapted ones stand for."""
        rest = {name: value for name, value in variables.items() if name != MERGED}
        return {**rest, "params": self.adapter.laid_over(rest["params"], variables[MERGED])}

    @cached_property
    def merged(self) -> TracedBundle:
        """The plain bundle whose weights hold the adapter."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {"variables": self.effective(self.variables), "adapter": None}
        return TracedBundle(**{**fields, **plain})

    @cached_property
    def traced(self) -> TracedModule:
        """The model with the merged variables."""
        return self.merged.traced


def adapted(bundle: TracedBundle, adapter: Adapter, adapters: Mapping[str, Any]) -> AdaptedBundle:
    """Return a bundle with an adapter laid over it; `bundle` stays as it is.

    Args:
        bundle: the base model.
        adapter: which modules, from `adapter_of`.
        adapters: their A and B, such as a trained state's `params["params"]`.
    """
    fields = {field.name: getattr(bundle, field.name) for field in dataclasses.fields(bundle)}
    variables = {**bundle.variables, MERGED: adapters}
    return AdaptedBundle(**{**fields, "variables": variables, "adapter": adapter})


def _chosen(kinds: ModuleKinds, targets: Targets) -> list[str]:
    """Return the names of the modules that `targets` means, in the module's order."""
    names = list(kinds.kinds)
    if isinstance(targets, str) and targets.lower() == ALL:
        linear = [name for name in names if kinds.kinds[name] in (LINEAR, CONV1D)]
        chosen = [name for name in linear if name != kinds.output]
    elif isinstance(targets, str):
        try:
            pattern = re.compile(targets)
        except re.error as error:
            raise InputRefused(
                f"targets {shown(targets)} is no regular expression ({error}); give a list for "
                "names or the ends of names"
            ) from error
        chosen = [name for name in names if pattern.fullmatch(name)]
    else:
        idle = [end for end in targets if not any(ends(name, end) for name in names)]
        if idle:
            short = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
            raise UnknownName(
                f"no module {shown(idle[0])} to adapt{nearest(idle[0], short)} "
                f"Known: {', '.join(short)}, {ALL}"
            )
        chosen = [name for name in names if any(ends(name, end) for end in targets)]
    if not chosen:
        raise UnknownName(f"targets {shown(targets)} names no module with a weight of its own")
    return chosen


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"
