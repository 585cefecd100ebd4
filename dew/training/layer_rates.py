"""Rates that fall layer by layer, from the head down to the embeddings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dew.errors import InputRefused
from dew.training.views import STACKS, names_of

Names = tuple[str, ...]

# What torch's models call the list of their layers; a number follows.
_LISTS = re.compile(r"layers?|h|blocks?|stages?|resblocks")
_HEADS = re.compile(r"head|classifier|score|cls\b|final|pooler", re.I)
_FIRST = re.compile(r"embed|wte|wpe|shared|patch|position|token|probe|table", re.I)


def scaled_by_layer(factor: float) -> optax.GradientTransformation:
    """Multiply every update by its layer's share of the rate; see `layer_shares`."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        shares = layer_shares(updates, factor)
        scaled = jax.tree.map(lambda u, share: u * jnp.asarray(share, u.dtype), updates, shares)
        return scaled, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def layer_shares(params: Any, factor: float) -> Any:
    """Return what each leaf's rate is multiplied by: a number, or an array along its layers.

    Of a model of N layers, layer n counted from 0 has factor^(N - n), embeddings factor^(N + 1),
    and what follows the layers, heads and last norms, 1. An encoder's layers lie below its
    decoder's, and a stage's below the next; towers side by side count by themselves.

    Args:
        params: arrays or shapes; leaves of stacked layers are [layers, ...], those of a traced
            model bear torch's names.
        factor: above 0 and at most 1.

    Raises:
        InputRefused: a factor out of range, or no layer among the names.

    Source: Clark et al. 2020 (ELECTRA), arXiv:2003.10555, whose fine-tuning has such rates.
    """
    if not 0 < factor <= 1:
        raise InputRefused(f"layer_decay is {factor}; expected above 0 and at most 1")
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    places = {names_of(path): _place(names_of(path)) for path, _ in leaves}
    depths: dict[Names, int] = {}
    for path, leaf in leaves:
        stack, number = places[names_of(path)]
        if stack:
            depth = leaf.shape[0] if number is None else number + 1
            depths[stack] = max(depths.get(stack, 0), depth)
    if not depths:
        raise InputRefused(
            "layer_decay: no leaf lies in a layer, as in layers/mlp/up/kernel or "
            "model.layers.0.mlp.up_proj.weight; leave it at 1"
        )

    def share(path: Any, leaf: Any) -> Any:
        names = names_of(path)
        stack, number = places[names]
        if not stack:
            above = _above(names, depths) if _is_first(names) else 0
            return np.float32(factor**above)
        top = _top(stack, depths)
        if number is not None:
            return np.float32(factor ** (top - number))
        exponents = top - np.arange(leaf.shape[0])
        shape = (-1, *(1 for _ in leaf.shape[1:]))
        return np.power(float(factor), exponents).astype(np.float32).reshape(shape)

    return jax.tree_util.tree_map_with_path(share, params)


def _place(names: Names) -> tuple[Names, int | None]:
    """Return the stack that a leaf lies in, () for none, and its layer if the name has it."""
    for at, name in enumerate(names[:-1]):
        if STACKS.fullmatch(name):
            return names[: at + 1], None
    parts = ".".join(names).split(".")
    for at in range(1, len(parts) - 1):
        if parts[at].isdigit() and _LISTS.fullmatch(parts[at - 1]):
            return tuple(parts[:at]), int(parts[at])
    return (), None


def _is_first(names: Names) -> bool:
    whole = ".".join(names)
    return bool(_FIRST.search(whole)) and not _HEADS.search(whole)


def _top(stack: Names, depths: dict[Names, int]) -> int:
    """Return the layers from the bottom of a stack up to the head."""
    return depths[stack] + sum(depths[later] for later in depths if _before(stack, later))


def _above(names: Names, depths: dict[Names, int]) -> int:
    """Return the exponent of an embedding: one more than the first layer above it."""
    parts = tuple(".".join(names).split("."))
    shared = {stack: _common(parts, ".".join(stack).split(".")) for stack in depths}
    near = [stack for stack in depths if shared[stack] == max(shared.values())]
    return 1 + max(_top(stack, depths) for stack in near)


def _common(first: Iterable[str], second: Iterable[str]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def _before(stack: Names, later: Names) -> bool:
    """Whether the layers of `stack` feed those of `later`."""
    one, other = ".".join(stack), ".".join(later)
    if "encoder" in one and one.replace("encoder", "decoder") == other:
        return True
    first, second = re.fullmatch(r"(.*stage)(\d+)", one), re.fullmatch(r"(.*stage)(\d+)", other)
    if first is None or second is None:
        return False
    return first[1] == second[1] and int(first[2]) < int(second[2])
