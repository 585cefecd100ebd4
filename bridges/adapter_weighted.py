"""Several adapters of one model added up, each with a weight of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from dew.errors import InputRefused, shown
from dew.nn.lora import LoRA, Site, found_module, path_of, replaced

EXACT = "cat"


def refuse_sum(count: int, weights: Sequence[float], combination_type: str) -> None:
    """Refuse a sum that is not exact, and weights that do not fit the adapters."""
    if combination_type != EXACT:
        raise InputRefused(
            f"combination_type is {shown(combination_type)}; dew adds adapters up exactly, which "
            f"PEFT calls {EXACT!r}: the ranks add up too"
        )
    if len(weights) != count:
        raise InputRefused(f"{count} adapters and {len(weights)} weights; give one for each")


def summed_native(
    parts: Sequence[tuple[LoRA, Any]], weights: Sequence[float]
) -> tuple[LoRA, dict[str, Any]]:
    """Return one adapter whose product is the weighted sum of theirs.

    Args:
        parts: settings and trained parameters of each.
        weights: of each.

    Raises:
        InputRefused: one trains magnitudes or leaves of the base, which do not add up.
    """
    if any(lora.dora or lora.whole for lora, _ in parts):
        raise InputRefused("adapters with use_dora, modules_to_save or biases do not add up")
    targets = list(dict.fromkeys(target for lora, _ in parts for target in lora.targets))
    tree: dict[str, Any] = {}
    sites: dict[str, Site] = {}
    for target in targets:
        path, a, b = path_of(target), [], []
        here = [
            (lora, low, w)
            for (lora, low), w in zip(parts, weights, strict=True)
            if target in lora.targets
        ]
        for lora, low, weight in here:
            collection = found_module(lora.collection(low), path)
            factor = jnp.asarray(collection.get("scale", lora.scale), jnp.float32) * weight
            rows = factor.reshape(-1, *(1 for _ in collection["b"].shape[1:]))
            b.append(collection["b"] * (rows if factor.ndim else factor))
            a.append(collection["a"])
        site = here[0][0].site(target, a[0].shape[0])
        wide = jnp.concatenate(a, axis=-1)
        rank, layers = wide.shape[-1], len(site.ranks)
        shared = all(lora.site(target, layers).shares == site.shares for lora, _, _ in here)
        shares = site.shares if shared and site.shares in targets else ""
        leaf = {"b": jnp.concatenate(b, axis=int(site.stacked))}
        tree = replaced(tree, path, leaf if shares else {**leaf, "a": wide})
        sites[target] = Site(
            (rank,) * layers, (float(rank),) * layers, site.inputs, site.stacked, shares
        )
    rank = max(site.ranks[0] for site in sites.values())
    return LoRA(rank, float(rank), tuple(targets), sites=sites), tree
