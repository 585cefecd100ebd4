"""The outputs of a traced module, put together as torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from bridges.torch.graph import Structure


@jax.tree_util.register_pytree_with_keys_class
class Output(dict):
    """Named outputs in torch's order: `out.logits`, `out["logits"]` and `out[0]` are the same."""

    def __getattr__(self, name: str) -> Any:
        """Return the output called `name`."""
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no output {name!r}; there are {', '.join(self)}") from None

    def __getitem__(self, name: Any) -> Any:
        """Return an output by its name, or by its place among those that are not None."""
        return self.to_tuple()[name] if isinstance(name, int | slice) else super().__getitem__(name)

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the outputs in order."""
        return tuple(self.values())

    def tree_flatten_with_keys(self) -> tuple[Any, tuple[str, ...]]:
        """Return the outputs with their names, for JAX."""
        return tuple((jax.tree_util.DictKey(name), self[name]) for name in self), tuple(self)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: Any) -> Output:
        """Return named outputs again, for JAX."""
        return cls(zip(names, values, strict=True))


def assembled(structure: Structure, leaves: Iterator[Any]) -> Any:
    """Return `leaves`, from the left, in the shape of `structure`."""
    if structure.kind == "leaf":
        return next(leaves)
    parts = [assembled(part, leaves) for part in structure.parts]
    if structure.kind == "tuple":
        return tuple(parts)
    if structure.kind == "list":
        return parts
    named = zip(structure.keys, parts, strict=True)
    return Output(named) if structure.kind == "output" else dict(named)
