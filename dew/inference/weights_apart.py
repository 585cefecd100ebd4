"""An encoder's weights with each layer's in arrays of their own, for rows of few tokens."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dew.inference.bundle import Bundle
from dew.nn.backbones.encoder_base import EncoderBase
from dew.nn.dense import in_pieces

STACK, APART = "layers", "apart"

_KEPT: weakref.WeakKeyDictionary[Bundle, tuple[list[weakref.ref], dict[str, Any]]] = (
    weakref.WeakKeyDictionary()
)


def variables_apart(bundle: Bundle) -> dict[str, Any]:
    """Return an encoder's variables with each layer's parameters in arrays of their own.

    They are a copy, made once; it lives as long as the bundle, and is made anew if an array of
    the stack was replaced.
    """
    params = bundle.variables["params"]
    leaves = jax.tree.leaves(params)
    kept = _KEPT.get(bundle)
    if kept is not None and _same(kept[0], leaves):
        return kept[1]
    count = jax.tree.leaves(params[STACK])[0].shape[0]
    layers = tuple(_layer(params[STACK], number) for number in range(count))
    rest = {name: part for name, part in params.items() if name != STACK}
    made = {"params": rest, APART: layers}
    _KEPT[bundle] = ([weakref.ref(leaf) for leaf in leaves], made)
    return made


def can_be_apart(bundle: Bundle) -> bool:
    """Tell whether the model is an encoder whose layers are one stack on one device."""
    if not isinstance(bundle.model, EncoderBase) or set(bundle.variables) != {"params"}:
        return False
    stack = bundle.variables["params"].get(STACK)
    leaves = jax.tree.leaves(stack)
    return bool(leaves) and len(getattr(leaves[0], "devices", set)()) == 1


def _layer(stack: Any, number: int) -> Any:
    """Return one layer's parameters, long kernels in the pieces that few rows are added up in."""

    def own(path: tuple[Any, ...], leaf: jax.Array) -> Any:
        # Cut on the host: nothing is compiled for it.
        part = np.asarray(leaf)[number]
        kernel = getattr(path[-1], "key", None) == "kernel" and part.ndim == 2
        return jax.device_put(in_pieces(part) if kernel else part)

    return jax.tree_util.tree_map_with_path(own, stack)


def _same(references: Sequence[weakref.ref], leaves: Sequence[Any]) -> bool:
    return len(references) == len(leaves) and all(
        own() is leaf for own, leaf in zip(references, leaves, strict=True)
    )
