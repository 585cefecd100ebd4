"""Copies of one array on several devices that no longer agree: arithmetic that went wrong."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dew.artifacts.agreement import Meetings
from dew.artifacts.coordination import this_process

_meetings = Meetings("replicas")


class ReplicasDiffer(RuntimeError):
    """A device holds another value than the devices that should hold the same."""


def check_replicas(state: Any) -> None:
    """Compare the copies of every array of a state, bit for bit, by their checksums.

    Every process has to call. Costs one pass over the state and one meeting.

    Args:
        state: a pytree of arrays placed on a mesh.

    Raises:
        ReplicasDiffer: names the first such leaf and the devices that are in the minority.
    """
    mine: dict[str, list[list[Any]]] = {}
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    for path, leaf in flat:
        if not isinstance(leaf, jax.Array) or len(leaf.sharding.device_set) == 1:
            continue
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        # The sums are all asked for before the first is waited for.
        sums = [
            (str(shard.index), shard.device, _checksum(shard.data))
            for shard in leaf.addressable_shards
        ]
        mine[name] = [[index, f"{this_process()} {device}", value] for index, device, value in sums]
    told = {
        name: [[index, where, int(value)] for index, where, value in found]
        for name, found in mine.items()
    }
    votes = _meetings.votes(told)
    for name in told:
        _compare(name, [entry for vote in votes for entry in vote[name]])


@jax.jit
def _checksum(values: jax.Array) -> jax.Array:
    if values.dtype == jnp.bool_:
        values = values.astype(jnp.uint8)
    words = jax.lax.bitcast_convert_type(values, _words(values.dtype)).astype(jnp.uint32)
    # A plain sum would not see two values that changed places.
    weights = jnp.arange(1, words.size + 1, dtype=jnp.uint32)
    return jnp.sum(words.reshape(-1) * (2 * weights + 1), dtype=jnp.uint32)


def _words(dtype: Any) -> Any:
    return {1: jnp.uint8, 2: jnp.uint16}.get(dtype.itemsize, jnp.uint32)


def _compare(name: str, found: list[list[Any]]) -> None:
    by_index: dict[str, dict[int, list[str]]] = {}
    for index, where, value in found:
        by_index.setdefault(index, {}).setdefault(value, []).append(where)
    for index, values in by_index.items():
        if len(values) == 1:
            continue
        held = sorted(values.values(), key=len)
        odd = ", ".join(held[0])
        raise ReplicasDiffer(
            f"{name} {index}: {odd} holds other bits than the {sum(map(len, held[1:]))} other "
            "devices that keep the same part, so some arithmetic went wrong there. Nothing was "
            "saved; look at that machine, then start again from the last checkpoint"
        )
