"""Low-rank adapters of linear kernels: their settings, first values and merge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused, nearest

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


@dataclass(frozen=True)
class LoRA:
    """Settings of low-rank adapters: kernel + (alpha / rank) a b.

    Args:
        rank: R, at least 1.
        alpha: numerator of the scale.
        targets: modules of each layer, from `ADAPTED`.

    Raises:
        InputRefused: a rank below 1 or a module that does not exist.

    Source: Hu et al. 2021, arXiv:2106.09685.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ("attention/query", "attention/value")

    def __post_init__(self) -> None:
        """Refuse settings that no adapter can have."""
        if self.rank < 1:
            raise InputRefused(f"LoRA rank is {self.rank}; it must be at least 1")
        for target in self.targets:
            if target not in ADAPTED:
                raise InputRefused(
                    f"no module {target!a:.200} to adapt{nearest(target, ADAPTED)};"
                    f" known: {', '.join(ADAPTED)}"
                )

    @property
    def scale(self) -> float:
        """Alpha / rank."""
        return self.alpha / self.rank

    def init(self, key: jax.Array, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the first adapters for `params`: `a` uniform as torch's linear layers, `b` zero.

        Args:
            key: draws `a`.
            params: a `CausalTransformer`'s, values or shapes.

        Returns:
            `layers/<module>/{a [layers, *in, R], b [layers, R, *out]}`, float32.
        """
        tree: dict[str, Any] = {}
        for index, target in enumerate(self.targets):
            group, module = target.split("/")
            if module not in params["layers"][group]:
                raise InputRefused(f"this model has no module {target!r} to adapt")
            layers, *shape = params["layers"][group][module]["kernel"].shape
            inputs, outputs = shape[: ADAPTED[target]], shape[ADAPTED[target] :]
            bound = 1 / math.sqrt(math.prod(inputs))
            a = jax.random.uniform(
                jax.random.fold_in(key, index),
                (layers, *inputs, self.rank),
                jnp.float32,
                -bound,
                bound,
            )
            leaf = {"a": a, "b": jnp.zeros((layers, self.rank, *outputs), jnp.float32)}
            tree.setdefault("layers", {}).setdefault(group, {})[module] = leaf
        return tree


def merged(params: Mapping[str, Any], adapters: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Return `params` with scale * a b added to every adapted kernel, summed in float32.

    Args:
        params: a `CausalTransformer`'s.
        adapters: the `lora` collection for it.
        scale: alpha / rank.
    """
    layers = {name: dict(group) for name, group in params["layers"].items()}
    for group, modules in adapters["layers"].items():
        for module, leaf in modules.items():
            kernel = params["layers"][group][module]["kernel"]
            a, b = np.asarray(leaf["a"], np.float32), np.asarray(leaf["b"], np.float32)
            depth, rank = a.shape[0], a.shape[-1]
            low = a.reshape(depth, -1, rank) @ b.reshape(depth, rank, -1)
            total = np.asarray(kernel, np.float32) + np.float32(scale) * low.reshape(kernel.shape)
            layers[group][module] = {
                **params["layers"][group][module],
                "kernel": jnp.asarray(total.astype(kernel.dtype)),
            }
    return {**params, "layers": layers}
