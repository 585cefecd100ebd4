"""How arrays that live in pieces on several processes come to the host, whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar, cast

import jax
import numpy as np

from dew.artifacts.agreement import agree_process_phase
from dew.artifacts.coordination import pooled, rank
from dew.artifacts.pieces import assembled, gathered_pieces

T = TypeVar("T")

GATHER_BYTES = 256 * 2**20
"""The bytes of global leaves that `collective_host` gathers in one computation.

A device holds one group's values, or one larger leaf, beside its own shards while a group is
gathered; with `held_by="first"` that is so on every process too.
"""


def host(value: T) -> T:
    """Return `value` with its arrays as numpy arrays of this process.

    On a pool this is `collective_host`: a collective that every process has to call.
    """
    return cast(T, collective_host(value, phase="host"))


def collective_host(
    value: T, *, phase: str, held_by: Literal["every", "first"] = "every"
) -> T | None:
    """Return a tree with its arrays on the host, gathered over the pool in agreed steps.

    First every leaf is waited for, so that a computation that failed is heard before any data
    moves, and the processes agree on what is to be gathered. Then the global leaves are
    replicated in groups of up to `GATHER_BYTES`, one computation and one agreement a group. Trees
    without global leaves may differ between processes, but all have to call.

    Args:
        value: a pytree of arrays and static data.
        phase: what this is for, the same on all processes.
        held_by: who gets the tree: every process, or process 0 alone.

    Returns:
        The tree, arrays as numpy; None where only process 0 holds it.

    Raises:
        PeerFailure: another process failed, or is about to gather something else.
        ValueError: `held_by` is neither.
        Exception: what failed here.
    """
    if held_by not in ("every", "first"):
        raise ValueError(f"held_by is {held_by!r}; it is 'every' or 'first'")
    leaves, structure = jax.tree.flatten(value)
    if not pooled():
        return jax.tree.unflatten(structure, [_local(leaf) for leaf in leaves])
    kept = held_by == "every" or rank() == 0
    out = list(leaves)
    spread = [index for index, leaf in enumerate(leaves) if _is_spread(leaf)]

    def prepare() -> None:
        jax.block_until_ready([leaf for leaf in leaves if isinstance(leaf, jax.Array)])
        for index in set(range(len(leaves))) - set(spread) if kept else ():
            out[index] = _local(leaves[index])

    plan = "; ".join(f"{leaves[i].dtype}{list(leaves[i].shape)}" for i in spread)
    _together(prepare, phase=phase, plan=plan)
    for group in groups([_bytes(leaves[index]) for index in spread]):
        members = [spread[at] for at in group]

        def gather(members: list[int] = members) -> None:
            pieces = gathered_pieces([leaves[index] for index in members])
            if kept:
                whole = assembled([leaves[index] for index in members], np.asarray(pieces))
                for index, leaf in zip(members, whole, strict=True):
                    out[index] = leaf

        _together(gather, phase=phase)
    return jax.tree.unflatten(structure, out) if kept else None


def groups(sizes: list[int]) -> Iterator[list[int]]:
    """Yield the indices of leaves that are gathered at a time, in order.

    Args:
        sizes: bytes of each leaf. A group holds up to `GATHER_BYTES`, or one larger leaf.
    """
    group: list[int] = []
    held = 0
    for index, size in enumerate(sizes):
        if group and held + size > GATHER_BYTES:
            yield group
            group, held = [], 0
        group.append(index)
        held += size
    if group:
        yield group


def _together(operation: Callable[[], None], *, phase: str, plan: str = "") -> None:
    error: BaseException | None = None
    try:
        operation()
    except BaseException as caught:
        error = caught
    agree_process_phase(error, phase=phase, plan=plan)


def _is_spread(leaf: Any) -> bool:
    """Tell whether some of a leaf's values lie on other processes only."""
    return (
        isinstance(leaf, jax.Array)
        and not leaf.is_fully_addressable
        and not leaf.is_fully_replicated
    )


def _local(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return np.asarray(leaf if leaf.is_fully_addressable else leaf.addressable_data(0))


def _bytes(leaf: jax.Array) -> int:
    return leaf.size * leaf.dtype.itemsize
