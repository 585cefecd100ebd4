"""One collective for many global arrays: every device's pieces packed, exchanged and put together.

A gather of each array by itself would pay the network's round trip once an array.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def gathered_pieces(leaves: list[jax.Array]) -> jax.Array:
    """Return uint8 [devices, bytes], on this process: what each device holds of `leaves`.

    Where an array has copies on r devices, each of these gives an r-th of it.

    Args:
        leaves: global arrays over the same devices.

    Raises:
        ValueError: they are not.
    """
    devices = _devices(leaves[0])
    if any(_devices(leaf) != devices for leaf in leaves):
        raise ValueError("the arrays lie on different sets of devices; gather them one by one")
    mesh = Mesh(np.asarray(devices), ("all",))
    slices = [_slices(leaf) for leaf in leaves]
    packed = []
    for device in (d for d in devices if d.process_index == jax.process_index()):
        shards = [_shard(leaf, device) for leaf in leaves]
        turns = tuple(np.int32(copies[device][1]) for copies in slices)
        packed.append(_packed(shards, turns, tuple(copies[device][2] for copies in slices)))
    shape = (len(devices), packed[0].shape[1])
    rows = NamedSharding(mesh, PartitionSpec("all"))
    spread = jax.make_array_from_single_device_arrays(shape, rows, packed)
    whole = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))(spread)
    return jax.block_until_ready(whole).addressable_data(0)


def assembled(leaves: list[jax.Array], pieces: np.ndarray) -> list[np.ndarray]:
    """Return `leaves` whole, as numpy arrays, from what `gathered_pieces` brought."""
    devices = _devices(leaves[0])
    out, start = [], 0
    for leaf in leaves:
        slices = _slices(leaf)
        length = _piece(leaf, slices)
        whole = np.empty(leaf.shape, leaf.dtype)
        parts: dict[Any, list[np.ndarray]] = {}
        for row, device in enumerate(devices):
            index, turn, copies = slices[device]
            parts.setdefault(index, [np.empty(0)] * copies)[turn] = pieces[row, start:][:length]
        for index, found in parts.items():
            place = tuple(slice(first, last) for first, last in index)
            shape = whole[place].shape
            size = math.prod(shape) * leaf.dtype.itemsize
            whole[place] = np.concatenate(found)[:size].view(leaf.dtype).reshape(shape)
        out.append(whole)
        start += length
    return out


@partial(jax.jit, static_argnums=2)
def _packed(shards: list[jax.Array], turns: tuple, copies: tuple[int, ...]) -> jax.Array:
    """Return uint8 [1, bytes]: each shard's `turn`-th part of `copies`, one after the other."""
    parts = []
    for shard, turn, count in zip(shards, turns, copies, strict=True):
        flat = _bytes_of(shard)
        length = -(-flat.size // count)
        padded = jnp.pad(flat, (0, length * count - flat.size))
        parts.append(jax.lax.dynamic_slice(padded, (turn * length,), (length,)))
    return jnp.concatenate(parts)[None]


def _bytes_of(shard: jax.Array) -> jax.Array:
    if shard.dtype == jnp.bool_:
        shard = shard.astype(jnp.uint8)
    if jnp.issubdtype(shard.dtype, jnp.complexfloating):
        shard = jnp.stack([shard.real, shard.imag], axis=-1)
    return jax.lax.bitcast_convert_type(shard, jnp.uint8).reshape(-1)


def _slices(leaf: jax.Array) -> dict[Any, tuple[tuple[tuple[int, int], ...], int, int]]:
    """Return device to the bounds of its shard, which copy of it that is, and of how many."""
    bounds = {
        device: tuple(part.indices(size)[:2] for part, size in zip(index, leaf.shape, strict=True))
        for device, index in leaf.sharding.devices_indices_map(leaf.shape).items()
    }
    copies, met = Counter(bounds.values()), Counter()
    out = {}
    for device in _devices(leaf):
        index = bounds[device]
        out[device] = (index, met[index], copies[index])
        met[index] += 1
    return out


def _piece(leaf: jax.Array, slices: dict) -> int:
    """Return the bytes that each device gives of a leaf."""
    copies = next(iter(slices.values()))[2]
    size = math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    return -(-size // copies)


def _devices(leaf: jax.Array) -> list[Any]:
    return sorted(leaf.sharding.device_set, key=lambda device: device.id)


def _shard(leaf: jax.Array, device: Any) -> jax.Array:
    return next(shard.data for shard in leaf.addressable_shards if shard.device == device)
