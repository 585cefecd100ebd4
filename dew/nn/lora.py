"""Low-rank adapters of linear kernels: their settings, first values and merge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused, nearest
from dew.nn.dense import output_lengths
from dew.nn.lora_start import STARTS, taken

ADAPTED = {
    "attention/query": 1,
    "attention/key": 1,
    "attention/value": 1,
    "attention/out": 2,
    "mlp/gate": 1,
    "mlp/up": 1,
    "mlp/down": 1,
}
"""Module of a layer to the number of axes its kernel contracts."""
WHOLE = ".whole"
"""The key of trained parameters under which leaves of the base stand that are trained whole."""
TRAINED = ("a", "b", "magnitude")
RESIDUAL = ("pissa", "olora")


@dataclass(frozen=True)
class Site:
    """How the adapters of one module differ from the settings that all share.

    Args:
        ranks: R of each layer, 0 where it has no adapter; one number where `stacked` is false.
        alphas: numerators of the scales, likewise.
        inputs: how many axes of its kernel are contracted.
        stacked: whether the kernel's first axis counts layers.
        shares: the target before it whose `a` it has too, where one map of the checkpoint is
            several of the model's; "" for none.
    """

    ranks: tuple[int, ...]
    alphas: tuple[float, ...]
    inputs: int = 1
    stacked: bool = True
    shares: str = ""


@dataclass(frozen=True)
class LoRA:
    """Settings of low-rank adapters: kernel + (alpha / rank) a b.

    Args:
        rank: R, at least 1.
        alpha: numerator of the scale.
        targets: modules of each layer, from `ADAPTED`, or paths of modules that `sites` has.
        dropout: the share of a map's inputs that its adapter does not see in a step.
        rslora: whether the scale is alpha / sqrt(rank) instead.
        dora: whether each output has a trained magnitude.
        start: how a and b begin: "uniform" (a as torch's linear layers, b zero), "random" (both
            so), "gaussian" (a normal with deviation 1 / rank, b zero), "pissa" or "olora" (out of
            the kernel's singular vectors or its QR factors, and the kernel without them).
        sites: targets whose rank or alpha is not that of all.
        whole: paths in `params` of leaves that are trained themselves, and in which layers, or
            None for all.
        saved: the modules of these leaves, by the checkpoint's names.
        bias: "all" or "lora_only" where biases are among them, else "none".

    Raises:
        InputRefused: a rank below 1, a dropout out of its range, a module that does not exist, an
            unknown start.

    Source: Hu et al. 2021, arXiv:2106.09685; Kalajdzievski 2023, arXiv:2312.03732, for the scale
    with the root; Meng et al. 2024, arXiv:2404.02948 (pissa); Büyükakyüz 2024, arXiv:2406.01775.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ("attention/query", "attention/value")
    dropout: float = 0.0
    rslora: bool = False
    dora: bool = False
    start: str = "uniform"
    sites: Mapping[str, Site] = field(default_factory=dict)
    whole: Mapping[str, tuple[bool, ...] | None] = field(default_factory=dict)
    saved: tuple[str, ...] = ()
    bias: str = "none"

    def __post_init__(self) -> None:
        """Refuse settings that no adapter can have."""
        if self.rank < 1:
            raise InputRefused(f"LoRA rank is {self.rank}; it must be at least 1")
        if not 0 <= self.dropout < 1:
            raise InputRefused(f"LoRA dropout is {self.dropout}; it must be from 0 to below 1")
        if self.start not in STARTS:
            raise InputRefused(
                f"no way {self.start!a:.200} for an adapter to begin{nearest(self.start, STARTS)};"
                f" known: {', '.join(STARTS)}"
            )
        for target in self.targets:
            if target not in ADAPTED and target not in self.sites:
                raise InputRefused(
                    f"no module {target!a:.200} to adapt{nearest(target, ADAPTED)};"
                    f" known: {', '.join(ADAPTED)}"
                )
            if self.start in RESIDUAL and target in self.sites and self.sites[target].shares:
                raise InputRefused(
                    f"{self.start} takes an adapter out of one kernel; {target} is part of a map "
                    "that the checkpoint holds as one. Begin another way, or leave it out"
                )

    @property
    def scale(self) -> float:
        """Alpha / rank, or alpha / sqrt(rank)."""
        return self.scale_of(self.rank, self.alpha)

    def scale_of(self, rank: int, alpha: float) -> float:
        """Return the factor on the low-rank path for a rank and an alpha; 0 for rank 0."""
        if not rank:
            return 0.0
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def site(self, target: str, layers: int) -> Site:
        """Return the ranks and alphas of a target in each layer."""
        if target in self.sites:
            return self.sites[target]
        return Site((self.rank,) * layers, (self.alpha,) * layers, ADAPTED[target])

    def init(self, key: jax.Array, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the first adapters for `params`, as `begin` does, without the kernels.

        Args:
            key: draws `a`.
            params: a model's, values or shapes.

        Returns:
            `<module>/{a [layers, *in, R], b [layers, R, *out], magnitude [layers, *out]}`, the
            last with `dora` alone, and copies of the whole leaves under `WHOLE`, all float32.
            Where layers have other ranks, R is the highest, and the rest of a and b is zero and
            stays so.
        """
        return self.begin(key, params)[0]

    def begin(
        self, key: jax.Array, params: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """Return the first adapters, and the params beside which they stand.

        The params are those given, but for kernels that gave a and b away ("pissa", "olora").
        """
        tree: dict[str, Any] = {}
        for index, target in enumerate(self.targets):
            path = path_of(target)
            module = found_module(params, path)
            if module is None or "kernel" not in module:
                raise InputRefused(f"this model has no module {target!r} to adapt")
            kernel = module["kernel"]
            site = self.site(target, kernel.shape[0])
            leaf, rest = self._first(jax.random.fold_in(key, index), kernel, site)
            if rest is not None:
                params = replaced(params, path, {**module, "kernel": rest})
            if self.dora:
                leaf["magnitude"] = _lengths(kernel, site)
            if site.shares:
                del leaf["a"]
            tree = replaced(tree, path, leaf)
        if self.whole:
            tree[WHOLE] = {
                path: jnp.asarray(found_module(params, path), jnp.float32) for path in self.whole
            }
        return tree, params

    def _first(
        self, key: jax.Array, kernel: jax.Array, site: Site
    ) -> tuple[dict[str, Any], jax.Array | None]:
        """Return a and b of one module, and its kernel where that has changed."""
        layers = kernel.shape[:1] if site.stacked else ()
        shape = kernel.shape[len(layers) :]
        inputs, outputs = shape[: site.inputs], shape[site.inputs :]
        rank = max(site.ranks)
        # Which columns of a layer there are: those beyond its own rank begin at zero and, since
        # the gradient of each of a and b has the other as a factor, stay there.
        real = jnp.arange(rank) < jnp.asarray(site.ranks)[:, None]
        real = real if site.stacked else real[0]
        columns = real.reshape(*layers, *(1 for _ in inputs), rank)
        if self.start in RESIDUAL:
            scales = self._scales(site)
            return taken(self.start, kernel, real, scales, site.inputs, stacked=site.stacked)
        size = (*layers, *inputs, rank)
        if self.start == "gaussian":
            a = jax.random.normal(key, size, jnp.float32) / jnp.maximum(1, _count(columns, -1))
        else:
            bound = 1 / math.sqrt(math.prod(inputs))
            a = jax.random.uniform(key, size, jnp.float32, -bound, bound)
        b = jnp.zeros((*layers, rank, *outputs), jnp.float32)
        if self.start == "random":
            rows = real.reshape(*layers, rank, *(1 for _ in outputs))
            b = jax.random.uniform(jax.random.fold_in(key, 1), b.shape, jnp.float32, -1, 1)
            roots = jnp.sqrt(jnp.maximum(1, _count(rows, len(layers))))
            b = jnp.where(rows, b / roots, 0.0)
        return {"a": jnp.where(columns, a, 0.0), "b": b}, None

    def _scales(self, site: Site) -> jax.Array:
        pairs = zip(site.ranks, site.alphas, strict=True)
        return jnp.asarray([self.scale_of(rank, alpha) for rank, alpha in pairs], jnp.float32)

    def collection(
        self, trained: Mapping[str, Any], key: jax.Array | None = None
    ) -> dict[str, Any]:
        """Return the collection `lora` that a model takes, of trained parameters.

        Args:
            trained: as `init` gives them.
            key: draws the dropout; None computes without it.
        """
        tree = {name: value for name, value in trained.items() if name != WHOLE}
        for index, target in enumerate(self.targets):
            path = path_of(target)
            leaf = dict(found_module(tree, path) or {})
            site = self.sites.get(target)
            drawn_for = index
            if site is not None and site.shares:
                leaf["a"] = found_module(tree, path_of(site.shares))["a"]
                drawn_for = self.targets.index(site.shares)
            stacked = site is None or site.stacked
            layers = leaf["a"].shape[:1] if stacked else ()
            if site is not None:
                scales = self._scales(site)
                leaf["scale"] = scales if stacked else scales[0]
            if site is not None and self.dora and not all(site.ranks):
                leaf["adapted"] = jnp.asarray(site.ranks) > 0
            if key is not None and self.dropout:
                drawn = jax.random.fold_in(key, drawn_for)
                leaf["seed"] = jax.random.bits(drawn, layers, jnp.uint32)
                leaf["keep"] = jnp.full(layers, 1 - self.dropout, jnp.float32)
            tree = replaced(tree, path, leaf)
        return tree

    def trained(self, collection: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trained parameters of a collection `lora`: what `collection` undoes.

        Args:
            collection: as a bundle holds it.
            params: those beside it, for the leaves that are trained whole.
        """
        tree: dict[str, Any] = {}
        for target in self.targets:
            path = path_of(target)
            leaf = found_module(collection, path)
            shares = target in self.sites and self.sites[target].shares
            kept = {k: leaf[k] for k in TRAINED if k in leaf and not (k == "a" and shares)}
            tree = replaced(tree, path, kept)
        if self.whole:
            tree[WHOLE] = {
                path: jnp.asarray(found_module(params, path), jnp.float32) for path in self.whole
            }
        return tree

    def with_whole(
        self, params: Mapping[str, Any], trained: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return `params` with the leaves that are trained whole, in the dtypes of `params`."""
        for path, leaf in trained.get(WHOLE, {}).items():
            base = jnp.asarray(found_module(params, path))
            value, layers = jnp.asarray(leaf).astype(base.dtype), self.whole[path]
            if layers is not None:
                mask = jnp.asarray(layers).reshape(-1, *(1 for _ in base.shape[1:]))
                value = jnp.where(mask, value, base)
            params = replaced(params, path, value)
        return params


def path_of(target: str) -> str:
    """Return the path in `params` of a module of `LoRA.targets`."""
    return f"layers/{target}" if target in ADAPTED else target


def found_module(params: Mapping[str, Any], path: str) -> Any:
    """Return what stands at a path of a nested dict, or None."""
    found: Any = params
    for name in path.split("/"):
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


def replaced(tree: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a nested dict with another value at a path; all else is shared."""
    name, _, rest = path.partition("/")
    return {**tree, name: replaced(tree.get(name, {}), rest, value) if rest else value}


def merged(params: Mapping[str, Any], adapters: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Return `params` with scale * a b added to every adapted kernel, summed in float32.

    Args:
        params: a model's.
        adapters: the `lora` collection for it.
        scale: of modules whose adapters do not bring their own.
    """
    tree = dict(params)
    for path, leaf in adapted_modules(adapters):
        module = found_module(params, path)
        kernel = module["kernel"]
        a, b = np.asarray(leaf["a"], np.float32), np.asarray(leaf["b"], np.float32)
        stacked = kernel.ndim == a.ndim + b.ndim - 3
        inputs, rank = a.ndim - 1 - stacked, a.shape[-1]
        depth = a.shape[0] if stacked else 1
        low = a.reshape(depth, -1, rank) @ b.reshape(depth, rank, -1)
        factors = np.broadcast_to(np.float32(leaf.get("scale", scale)), depth)[:, None, None]
        base = np.asarray(kernel, np.float32)
        total = base + (factors * low).reshape(kernel.shape)
        if "magnitude" in leaf:
            axes = tuple(range(int(stacked), inputs + stacked))
            lengths = np.sqrt(np.sum(np.square(total), axis=axes, keepdims=True))
            total = total * (np.asarray(leaf["magnitude"]).reshape(lengths.shape) / lengths)
            if "adapted" in leaf:
                mask = np.asarray(leaf["adapted"]).reshape(-1, *(1 for _ in kernel.shape[1:]))
                total = np.where(mask, total, base)
        value = jnp.asarray(total.astype(kernel.dtype))
        tree = replaced(tree, path, {**module, "kernel": value})
    return tree


def plain_variables(variables: Mapping[str, Any], scale: float) -> Mapping[str, Any]:
    """Return variables that compute the same with a kernel and the product a b alone.

    They are those given, unless an adapter has more to it: a scale of its own, magnitudes. Then it
    is merged. Code that reads the leaves itself, past `Dense`, knows only the plain form.

    Args:
        variables: a model's.
        scale: of modules whose adapters do not bring their own.
    """
    low = variables.get("lora", {})
    if all(set(leaf) <= {"a", "b"} for _, leaf in adapted_modules(low)):
        return variables
    rest = {name: value for name, value in variables.items() if name != "lora"}
    return {**rest, "params": merged(variables["params"], low, scale)}


def adapted_modules(adapters: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    """Return each module of a `lora` collection by its path, with its leaves."""
    if "a" in adapters and not isinstance(adapters["a"], Mapping):
        return [(path.removesuffix("/"), adapters)]
    return [
        found
        for name, below in adapters.items()
        if isinstance(below, Mapping)
        for found in adapted_modules(below, f"{path}{name}/")
    ]


def _count(real: jax.Array, axis: int) -> jax.Array:
    return jnp.sum(real, axis, keepdims=True)


def _lengths(kernel: jax.Array, site: Site) -> jax.Array:
    if site.stacked:
        return jax.vmap(lambda one: output_lengths(one, site.inputs))(kernel)
    return output_lengths(kernel, site.inputs)
