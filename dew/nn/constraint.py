"""Hints of where activations lie, which a layout gives while a step is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax

Chooser = Callable[[tuple[str | None, ...], tuple[int, ...]], Any]

_CHOOSER: ContextVar[Chooser | None] = ContextVar("chooser", default=None)


def constrained(x: jax.Array, *axes: str | None) -> jax.Array:
    """Return `x`, held to the layout that is tracing this, if one is.

    Args:
        x: any array.
        axes: the logical name of each of its axes; None where none cuts it.
    """
    chooser = _CHOOSER.get()
    if chooser is None:
        return x
    return jax.lax.with_sharding_constraint(x, chooser(axes, x.shape))


@contextmanager
def constrained_by(chooser: Chooser) -> Iterator[None]:
    """Let `chooser(axes, shape)` give the sharding of every constrained array traced inside."""
    token = _CHOOSER.set(chooser)
    try:
        yield
    finally:
        _CHOOSER.reset(token)
