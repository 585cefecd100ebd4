"""Adapters that began with factors of the kernels, made ones over the kernels as they were."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.nn.lora import LoRA, Site, found_module, path_of, replaced


def settled(
    lora: LoRA, trained: Mapping[str, Any], params: Mapping[str, Any]
) -> tuple[LoRA, dict[str, Any]]:
    """Return an adapter over the kernels as they were, for one that began with their factors.

    Beside a kernel less a0 b0, the product a b is what [a, a0] [b, -b0] is beside the kernel.

    Args:
        lora: settings whose start is in `RESIDUAL`.
        trained: the trained parameters.
        params: the model's, from before.
    """
    first = lora.init(jax.random.key(0), params)
    tree: dict[str, Any] = dict(trained)
    factor = math.sqrt(2) if lora.rslora else 2.0
    sites: dict[str, Site] = {}
    for target in lora.targets:
        path = path_of(target)
        now, then = (found_module(part, path) for part in (trained, first))
        site = lora.site(target, now["a"].shape[0])
        layers = len(site.ranks)
        a, a0, b, b0 = (
            np.asarray(leaf).reshape(layers, *leaf.shape[int(site.stacked) :])
            for leaf in (now["a"], then["a"], now["b"], then["b"])
        )
        wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), np.float32)
        high = np.zeros((layers, 2 * b.shape[1], *b.shape[2:]), np.float32)
        for layer, rank in enumerate(site.ranks):
            for start, left, right in ((0, a, b), (rank, a0, -b0)):
                wide[layer, ..., start : start + rank] = left[layer, ..., :rank]
                high[layer, start : start + rank] = right[layer, :rank]
        lead = (layers,) if site.stacked else ()
        made = {
            **now,
            "a": jnp.asarray(wide.reshape(*lead, *wide.shape[1:])),
            "b": jnp.asarray(high.reshape(*lead, *high.shape[1:])),
        }
        tree = replaced(tree, path, made)
        if target in lora.sites:
            ranks = tuple(2 * rank for rank in site.ranks)
            alphas = tuple(factor * alpha for alpha in site.alphas)
            sites[target] = replace(site, ranks=ranks, alphas=alphas)
    alone = {"rank": 2 * lora.rank, "alpha": factor * lora.alpha, "start": "uniform"}
    return replace(lora, **alone, sites=sites), tree
