"""Low-rank adapters of a traced module's linear maps, by torch's names: W + scale * B A."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.adapter_bundle import NamedAdapters
from bridges.adapter_settings import ALL, RESIDUAL, AdapterSettings, scale
from bridges.torch.adapted_modules import (
    chosen_modules,
    in_order,
    module_kinds,
    refuse_modules,
    whole_leaves,
)
from bridges.torch.checkpoint import TracedBundle
from bridges.torch.kinds import CONV1D
from bridges.torch.module import TracedModule
from dew.errors import InputRefused, shown

Targets = str | Sequence[str]
MERGED = "lora"
WHOLE = ".whole"
"""The key of an adapter's parameters under which leaves stand that are trained whole."""


@dataclasses.dataclass(frozen=True)
class Adapter:
    """Which linear maps of a traced module are adapted, and by how much.

    Attributes:
        rank: R of every module that `ranks` does not name.
        alpha: numerator of the scale, likewise.
        weights: each adapted module's name, and the leaf of `params` that is its weight.
        transposed: the modules that store their weight [inputs, outputs], as GPT-2's Conv1D.
        dropout: the share of a map's inputs that its low-rank product does not see in a step.
        ranks: other ranks, by module.
        alphas: other alphas, by module.
        rslora: whether the scale is alpha / sqrt(R) instead of alpha / R.
        dora: whether each output has a trained magnitude.
        whole: the leaves of `params` that are trained themselves.
        saved: the modules of these leaves, as they were asked for.
        bias: "all" or "lora_only" where biases are among them, else "none".
        start: how A and B begin, see `bridges.adapter_config.STARTS`.

    Source: Hu et al. 2021, arXiv:2106.09685; Liu et al. 2024, arXiv:2402.09353 (magnitudes).
    """

    rank: int
    alpha: float
    weights: tuple[tuple[str, str], ...]
    transposed: frozenset[str] = frozenset()
    dropout: float = 0.0
    ranks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    alphas: Mapping[str, float] = dataclasses.field(default_factory=dict)
    rslora: bool = False
    dora: bool = False
    whole: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    bias: str = "none"
    start: bool | str = True

    @property
    def scale(self) -> float:
        """Alpha / rank, or alpha / sqrt(rank)."""
        return scale(self.rank, self.alpha, self.rslora)

    @property
    def modules(self) -> tuple[str, ...]:
        """The adapted modules by torch's names."""
        return tuple(module for module, _ in self.weights)

    def rank_of(self, module: str) -> int:
        """Return the rank of one module."""
        return self.ranks.get(module, self.rank)

    def alpha_of(self, module: str) -> float:
        """Return the alpha of one module."""
        return self.alphas.get(module, self.alpha)

    def scale_of(self, module: str) -> float:
        """Return the factor on the low-rank path of one module."""
        return scale(self.rank_of(module), self.alpha_of(module), self.rslora)

    def init(self, key: jax.Array, params: Mapping[str, Any]) -> dict[str, dict[str, jax.Array]]:
        """Return the first adapters: A Kaiming uniform as torch's linear layers, B zero.

        Args:
            key: draws A.
            params: the module's.

        Returns:
            `{module: {"A": [R, inputs], "B": [outputs, R]}}`, with `dora` also "M" [outputs], the
            length of each output's weights; and the whole leaves under `WHOLE`; all float32.

        Raises:
            InputRefused: a start that takes A and B out of the weights: what is frozen here are
                the weights as they are.
        """
        if self.start in RESIDUAL:
            raise InputRefused(
                f"init_lora_weights is {shown(self.start)}: a traced model's weights stay as they "
                "are, and this way takes the adapter out of them; begin with true or 'gaussian'"
            )
        tree: dict[str, dict[str, jax.Array]] = {}
        for number, (module, leaf) in enumerate(self.weights):
            drawn, rank = jax.random.fold_in(key, number), self.rank_of(module)
            outputs, inputs = self.sizes(module, params)
            # kaiming_uniform_ with a = sqrt(5): a bound of sqrt(6 / ((1 + 5) inputs)).
            pair = {
                "A": _uniform(drawn, (rank, inputs)),
                "B": jnp.zeros((outputs, rank), jnp.float32),
            }
            if self.start == "gaussian":
                pair["A"] = jax.random.normal(drawn, (rank, inputs), jnp.float32) / rank
            if self.start is False:
                pair["B"] = _uniform(jax.random.fold_in(drawn, 1), (outputs, rank))
            if self.dora:
                pair["M"] = lengths(params[leaf], module in self.transposed)
            tree[module] = pair
        if self.whole:
            tree[WHOLE] = {leaf: jnp.asarray(params[leaf], jnp.float32) for leaf in self.whole}
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
        for leaf, value in adapters.get(WHOLE, {}).items():
            out[leaf] = value.astype(out[leaf].dtype)
        for module, leaf in self.weights:
            pair, weight, across = adapters[module], params[leaf], module in self.transposed
            total = summed(weight, pair["A"], pair["B"], self.scale_of(module), across)
            if "M" in pair:
                total = decomposed(total, pair["M"], across)
            out[leaf] = total.astype(weight.dtype)
        return out

    def sizes(self, module: str, params: Mapping[str, Any]) -> tuple[int, int]:
        """Return the outputs and inputs of one adapted module."""
        shape = params[dict(self.weights)[module]].shape
        return (shape[1], shape[0]) if module in self.transposed else (shape[0], shape[1])


def summed(weight: jax.Array, a: jax.Array, b: jax.Array, factor: float, across: bool) -> jax.Array:
    """Return W + factor * B A, float32; `across` says that W lies [inputs, outputs]."""
    low = factor * jnp.matmul(b, a, precision="highest")
    return weight.astype(jnp.float32) + (low.T if across else low)


def decomposed(total: jax.Array, magnitude: jax.Array, across: bool) -> jax.Array:
    """Return an adapted weight whose outputs have their trained magnitudes."""
    share = magnitude / jax.lax.stop_gradient(lengths(total, across))
    return total * (share if across else share[:, None])


def lengths(weight: jax.Array, across: bool) -> jax.Array:
    """Return the Euclidean length of each output's weights, float32 [outputs]."""
    return jnp.sqrt(jnp.sum(jnp.square(weight.astype(jnp.float32)), axis=0 if across else 1))


def adapter_of(
    source: TracedModule | TracedBundle,
    *,
    rank: int = 8,
    alpha: float = 8.0,
    targets: Targets = ALL,
    dropout: float = 0.0,
    **more: Any,
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
        **more: further fields of `bridges.adapter_config.AdapterSettings`.

    Raises:
        InputRefused: a rank below 1, a dropout out of its range, or targets that are no linear
            maps of their own, by name: embeddings, convolutions, a weight that several modules
            share.
        UnknownName: a target that no module has.
    """
    every = isinstance(targets, str) and targets.lower() == ALL
    names = targets if isinstance(targets, str) else tuple(targets)
    settings = AdapterSettings(
        rank, float(alpha), None if every else names, dropout=float(dropout), **more
    )
    return adapter_from(source, settings)


def adapter_from(
    source: TracedModule | TracedBundle,
    settings: AdapterSettings,
    present: Sequence[str] | None = None,
) -> Adapter:
    """Return the adapter that PEFT's settings ask for; see `adapter_of`.

    Args:
        source: what `bridges.from_torch` or `bridges.load` gave.
        settings: as of an adapter_config.json.
        present: the modules that have an adapter; None for those that the settings choose.
    """
    if settings.rank < 1:
        raise InputRefused(f"LoRA rank is {shown(settings.rank)}; it must be at least 1")
    if not 0 <= settings.dropout < 1:
        raise InputRefused(
            f"LoRA dropout is {shown(settings.dropout)}; it must be from 0 to below 1"
        )
    kinds = module_kinds(source)
    chosen = chosen_modules(kinds, settings) if present is None else in_order(kinds, present)
    refuse_modules(kinds, chosen)
    ranks = {name: settings.rank_of(name) for name in chosen}
    alphas = {name: settings.alpha_of(name) for name in chosen}
    return Adapter(
        rank=settings.rank,
        alpha=settings.alpha,
        weights=tuple((name, kinds.weight(name)) for name in chosen),
        transposed=frozenset(name for name in chosen if kinds.kinds[name] == CONV1D),
        dropout=settings.dropout,
        ranks={name: rank for name, rank in ranks.items() if rank != settings.rank},
        alphas={name: alpha for name, alpha in alphas.items() if alpha != settings.alpha},
        rslora=settings.rslora,
        dora=settings.dora,
        whole=whole_leaves(kinds, settings, chosen),
        saved=settings.saved,
        bias=settings.bias,
        start=settings.start,
    )


@dataclasses.dataclass(frozen=True)
class Trained:
    """One adapter of a traced model.

    Attributes:
        adapter: which modules, and by how much.
        params: its trained parameters, as `Adapter.init` lays them out.
    """

    adapter: Adapter
    params: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class AdaptedBundle(NamedAdapters, TracedBundle):
    """A traced model with adapters laid over it; see `NamedAdapters`.

    With one active, `variables` hold its parameters under "lora", and `adapter` says what it is.
    """

    base: Any = None
    adapters: Mapping[str, Trained] = dataclasses.field(default_factory=dict)
    active: str | None = None
    is_merged: bool = False

    @classmethod
    def over(
        cls, base: TracedBundle, adapters: Mapping[str, Trained], active: str | None
    ) -> AdaptedBundle:
        """Return a bundle of a plain one and adapters."""
        fields = {f.name: getattr(base, f.name) for f in dataclasses.fields(TracedBundle)}
        if active is not None:
            chosen = adapters[active]
            fields["variables"] = {**base.variables, MERGED: chosen.params}
            fields["adapter"] = chosen.adapter
        return cls(**fields, base=base, adapters=dict(adapters), active=active)

    def with_adapters(self, adapters: Mapping[str, Any], active: str | None) -> AdaptedBundle:
        """Return a bundle of the same base with these adapters, of which `active` computes."""
        return self.over(self.base, adapters, active)

    def summed(self, parts: Sequence[Any], weights: Sequence[float]) -> Trained:
        """Return the weighted sum of adapters.

        Raises:
            InputRefused: one trains magnitudes or leaves of the base, which do not add up.
        """
        if any(part.adapter.dora or part.adapter.whole for part in parts):
            raise InputRefused("adapters with use_dora, modules_to_save or biases do not add up")
        pairs: dict[str, list[tuple[Any, Any]]] = {}
        leaves: dict[str, str] = {}
        for part, weight in zip(parts, weights, strict=True):
            leaves |= dict(part.adapter.weights)
            for module, pair in part.params.items():
                factor = weight * part.adapter.scale_of(module)
                pairs.setdefault(module, []).append((pair["A"], factor * pair["B"]))
        params = {
            module: {
                "A": jnp.concatenate([a for a, _ in found]),
                "B": jnp.concatenate([b for _, b in found], axis=1),
            }
            for module, found in pairs.items()
        }
        ranks = {module: pair["A"].shape[0] for module, pair in params.items()}
        rank = max(ranks.values())
        others = {module: r for module, r in ranks.items() if r != rank}
        across = frozenset().union(*(part.adapter.transposed for part in parts))
        alphas = {module: float(r) for module, r in others.items()}
        made = Adapter(
            rank, float(rank), tuple(leaves.items()), across, ranks=others, alphas=alphas
        )
        return Trained(made, params)

    def merge_adapter(self) -> AdaptedBundle:
        """Return the bundle with the active adapter in its weights; the base is kept beside.

        Raises:
            InputRefused: no adapter is active.
        """
        if self.adapter is None:
            raise InputRefused("the bundle has no adapter to merge")
        variables = self.effective(self.variables)
        return dataclasses.replace(self, variables=variables, adapter=None, is_merged=True)

    def apply(self, variables: Any, **inputs: Any) -> dict[str, Any]:
        """Return the outputs for other variables: pure, to be jitted or differentiated."""
        return super().apply(self.effective(variables), **inputs)

    def generate(self, input_ids: Any, attention_mask: Any = None, **options: Any) -> np.ndarray:
        """Continue each prompt with the adapter merged; see `Bundle.generate`."""
        return self.merged.generate(input_ids, attention_mask, **options)

    def effective(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plain variables that the adapted ones stand for."""
        rest = {name: value for name, value in variables.items() if name != MERGED}
        if MERGED not in variables:
            return rest
        return {**rest, "params": self.adapter.laid_over(rest["params"], variables[MERGED])}

    @cached_property
    def merged(self) -> TracedBundle:
        """The plain bundle whose weights hold the adapter."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(TracedBundle)}
        plain = {"variables": self.effective(self.variables), "adapter": None}
        return TracedBundle(**{**fields, **plain})

    @cached_property
    def traced(self) -> TracedModule:
        """The model with the merged variables."""
        return self.merged.traced


def adapted(
    bundle: TracedBundle, adapter: Adapter, adapters: Mapping[str, Any], name: str = "default"
) -> AdaptedBundle:
    """Return a bundle with an adapter laid over it; `bundle` stays as it is.

    Args:
        bundle: the base model, or one with adapters already.
        adapter: which modules, from `adapter_of`.
        adapters: their A and B, such as a trained state's `params["params"]`.
        name: the adapter's; the first is active, as for `bridges.load_adapter`.
    """
    made = Trained(adapter, adapters)
    if not isinstance(bundle, AdaptedBundle):
        return AdaptedBundle.over(bundle, {name: made}, name)
    others = {**bundle.adapters, name: made}
    return bundle.with_adapters(others, name if set(others) == {name} else bundle.active)


def _uniform(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Return a matrix drawn as torch draws a linear layer of `shape[1]` inputs."""
    bound = 1 / math.sqrt(shape[1])
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)
