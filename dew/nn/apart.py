"""Layers with weights of their own: what takes the place of a scan where few tokens are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax

_LAYERS: ContextVar[Sequence[Any] | None] = ContextVar("layers", default=None)


class Apart:
    """Runs blocks one after the other, each with parameters of its own.

    A scan copies a layer's weights out of the stack before it reads them, which for a short row
    takes longer than the products.

    Args:
        block: the module of one layer; it takes the stream and then the arguments below.
        fields: of that module.
        layers: the parameters of each.
        shared: how many arguments are the same for all layers; the rest hold one element each.
    """

    def __init__(
        self, block: Any, fields: Sequence[Any], layers: Sequence[Any], *, shared: int
    ) -> None:
        self._block, self._fields, self._layers = block, tuple(fields), layers
        self._shared = shared

    def __call__(self, x: jax.Array, *arguments: Any) -> tuple[jax.Array, None]:
        """Run the layers on `x`; the arguments are those of the scanned stack."""
        same, own = arguments[: self._shared], arguments[self._shared :]
        for number, params in enumerate(self._layers):
            each = [jax.tree.map(lambda leaf, at=number: leaf[at], argument) for argument in own]
            block = self._block(*self._fields, parent=None)
            x, _ = block.apply({"params": params}, x, *same, *each)
        return x, None


def layers_apart() -> Sequence[Any] | None:
    """Return the parameters of each layer that `apart` gives, None outside of it."""
    return _LAYERS.get()


@contextmanager
def apart(layers: Sequence[Any]) -> Iterator[None]:
    """Let the stacks of encoders that are traced inside run these layers' parameters."""
    token = _LAYERS.set(layers)
    try:
        yield
    finally:
        _LAYERS.reset(token)
