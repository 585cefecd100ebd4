"""Torch's tensors and the leaves of a tree: which is which, by name or by a weight table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from bridges.family import FAMILIES, family_of
from bridges.table import Row, flat, into_tree, nested, out_of_tree, tensor_shapes
from dew.errors import WeightMismatch, listed


@dataclass(frozen=True)
class NamedLeaves:
    """How torch's tensors stand to the leaves of a tree.

    Attributes:
        rows: the weight table of a native family; None for leaves that bear torch's names.
    """

    rows: tuple[Row, ...] | None

    @classmethod
    def of(cls, bundle: Any) -> NamedLeaves:
        """Return those of a bundle: of a native family by its rows, of any other by name."""
        from bridges.torch.checkpoint import TracedBundle

        if bundle is None or bundle.family not in FAMILIES or isinstance(bundle, TracedBundle):
            return cls(None)
        return cls(family_of({"model_type": bundle.family}).rows(bundle.model))

    def path(self, path: Any) -> str:
        """Return a leaf's name: torch's, or with rows the one that they know it by."""
        return jax.tree_util.keystr(path, simple=True, separator="/" if self.rows else ".")

    def leaves(self, *trees: Any) -> dict[str, Any]:
        """Return the leaves of all trees by name; what a mask leaves out of one is in another."""
        pairs = [pair for tree in trees for pair in jax.tree_util.tree_leaves_with_path(tree)]
        return {self.path(path): leaf for path, leaf in pairs}

    def shapes(self, leaves: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of torch's tensors, by name."""
        if self.rows is None or not leaves:
            return {name: tuple(leaf.shape) for name, leaf in leaves.items()}
        return dict(tensor_shapes(self.rows, leaves))

    def into(self, parts: Mapping[str, np.ndarray], leaves: Mapping[str, Any]) -> dict[str, Any]:
        """Return the leaves' values from those of torch's tensors."""
        if self.rows is None:
            return dict(parts)
        return flat(into_tree(self.rows, _Held(parts), nested(leaves), None))

    def out(self, leaves: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the tensors' values from those of the leaves."""
        if self.rows is None or not leaves:
            return {name: np.asarray(leaf) for name, leaf in leaves.items()}
        return dict(out_of_tree(self.rows, nested(leaves)))

    def groups(self, leaves: Mapping[str, Any], of_name: Mapping[str, int]) -> dict[str, int]:
        """Return the group of each leaf, from the group of each tensor.

        A stacked leaf holds the tensors of all its layers, which have to be in one group.
        """
        holds: dict[str, list[str]] = {path: [path] for path in leaves}
        for row in self.rows or ():
            theirs = [name for name, _ in tensor_shapes((row,), leaves)]
            holds |= dict.fromkeys(row.leaves, theirs)
        found: dict[str, int] = {}
        problems = []
        for path, names in holds.items():
            unknown = [name for name in names if name not in of_name]
            numbers = sorted({of_name[name] for name in names if name in of_name})
            if unknown:
                problems.append(f"missing     {unknown[0]} is in no group")
            elif len(numbers) > 1:
                problems.append(f"divided     {names[0]} and its kin are in groups {numbers}")
            else:
                found[path] = numbers[0]
        if problems:
            raise WeightMismatch(listed("torch's groups do not fit the parameters:", problems))
        return found


@dataclass(frozen=True)
class _Held:
    """Arrays by name, as the weight table reads them."""

    arrays: Mapping[str, np.ndarray]

    def names(self) -> list[str]:
        return list(self.arrays)

    def info(self, name: str) -> Any:
        return self.arrays[name]

    def read(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def release(self, name: str) -> None:
        pass
