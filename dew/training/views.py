"""Which parameter of torch a leaf stands for: a stack of layers, and in it matrices or vectors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import jax

# The names of modules whose layers are stacked along the first axis and scanned.
STACKS = re.compile(r"layers|\w+_blocks|stage\d+|Scan\w+")
_VECTORS = ("bias", "scale")
_TO_HEADS = re.compile(r"(?:\w+_)?(?:query|key|value)")
_FROM_HEADS = "out"
_OUTER = re.compile(r"embed|wte|wpe|shared|head|classifier|score|position|patch", re.I)


@dataclass(frozen=True)
class View:
    """How a leaf looks in torch, up to a transposition.

    Args:
        shape: of the view: the axis of layers if there is one, then those of one parameter; a
            map to or from heads has one axis for all heads and their features.
        stacked: whether the first axis numbers layers.
        matrix: whether the last two axes are inputs and outputs.
        flipped: whether they are outputs and inputs, as torch stores them.
        hidden: whether it is a two-axis weight inside the network: no table, head or convolution.
    """

    shape: tuple[int, ...]
    stacked: bool
    matrix: bool
    flipped: bool = False
    hidden: bool = False

    @property
    def own_axes(self) -> tuple[int, ...]:
        """The axes of one parameter."""
        return tuple(range(int(self.stacked), len(self.shape)))

    @property
    def outputs_inputs(self) -> tuple[int, int]:
        """The sizes of a matrix as torch orders them."""
        rows, columns = self.shape[-2:]
        return (rows, columns) if self.flipped else (columns, rows)


def views_of(params: Any) -> Any:
    """Return the `View` of every leaf, by its path: see `view_of`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: view_of(names_of(path), tuple(leaf.shape)), params
    )


def names_of(path: Any) -> tuple[str, ...]:
    """Return the keys of a leaf's path as texts."""
    return tuple(str(getattr(key, "key", getattr(key, "name", key))) for key in path)


def view_of(names: tuple[str, ...], shape: tuple[int, ...]) -> View:
    """Return how a leaf looks in torch.

    A native model's leaf below a stack (`STACKS`) has the layers first. A kernel of three axes
    maps to heads where its module is called query, key or value, and from them where it is `out`.
    A traced model's leaf bears torch's own name and has torch's axes. Other leaves of over two
    axes, convolutions and experts among them, are taken as they are.

    Args:
        names: the keys to it.
        shape: of it.
    """
    stacked = len(shape) > 0 and any(STACKS.fullmatch(name) for name in names[:-1])
    own = shape[int(stacked) :]
    first = shape[: int(stacked)]
    *_, module, leaf = ("", "", *names)
    if len(own) < 2 or any(leaf == end or leaf.endswith(f"_{end}") for end in _VECTORS):
        return View((*first, math.prod(own)), stacked, matrix=False)
    flipped = "." in leaf
    hidden = leaf == "kernel" or leaf in ("a", "b") or (flipped and len(own) == 2)
    cut = _inputs(module, leaf)
    if len(own) == 3 and cut and leaf in ("kernel", "a", "b"):
        own = (math.prod(own[:cut]), math.prod(own[cut:]))
    hidden = hidden and len(own) == 2 and not any(_OUTER.search(name) for name in names)
    return View((*first, *own), stacked, matrix=True, flipped=flipped, hidden=hidden)


def _inputs(module: str, leaf: str) -> int:
    """Return how many of three axes are inputs: 1 to heads, 2 from them, 0 if neither is known.

    Of an adapter's pair, `a` [*in, R] and `b` [R, *features], only one has an axis of heads.
    """
    if module == _FROM_HEADS:
        return 1 if leaf == "b" else 2
    return 1 if _TO_HEADS.fullmatch(module) else 0
