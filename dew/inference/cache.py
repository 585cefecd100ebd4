"""The decode engine's cache of keys and values: its layout and sizes, and how prompts fill it."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dew.inference.step import decode_steps
from dew.inference.weights import DecodeWeights
from dew.nn.attention import KVCache, causal_mask
from dew.nn.block import Block
from dew.typing import Variables

SMALLEST_BUCKET = 16
LARGEST_DOUBLING = 256
SMALLEST_ROOM = 128
SMALLEST_PIECE, LARGEST_PIECE = 16, 128


class Prefilled(NamedTuple):
    """What a prompt leaves behind: `logits` [N, V] of the next token, and each layer's cache.

    Keys and values are [N * G, S, K], groups within rows: a query of one token reads them without
    a transpose or a reshape.
    """

    logits: jax.Array
    layers: tuple[KVCache, ...]


def bucket(length: int) -> int:
    """Return the padded length that `length` shares with its neighbours, to compile rarely.

    Powers of two up to `LARGEST_DOUBLING`, its multiples beyond.
    """
    if length > LARGEST_DOUBLING:
        return -(-length // LARGEST_DOUBLING) * LARGEST_DOUBLING
    return max(SMALLEST_BUCKET, 1 << (length - 1).bit_length())


def room(length: int, new: int) -> tuple[int, int]:
    """Return how many slots `length` tokens and `new` ones get, and how many are read at a time.

    Few rooms, so that few programs serve all lengths; an eighth of a room is read at a time, for
    what passes the last token is read in vain.
    """
    slots = bucket(max(length + new, SMALLEST_ROOM))
    while True:
        piece = min(max(1 << (slots.bit_length() - 4), SMALLEST_PIECE), LARGEST_PIECE)
        if -(-length // piece) * piece <= slots:
            return slots, piece
        slots = bucket(slots + 1)


def left_padded(tokens: np.ndarray, mask: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the real tokens of each row moved to the right end of `width` slots, and their mask.

    Args:
        tokens: [N, P].
        mask: [N, P], nonzero where real, in any pattern.
        width: at least the number of real tokens in any row.

    Returns:
        int32 [N, width] tokens (0 where padded) and mask.
    """
    moved = np.zeros((len(tokens), width), np.int32)
    kept = np.zeros_like(moved)
    for row, (ids, real) in enumerate(zip(tokens, mask, strict=True)):
        ids = ids[real != 0]
        moved[row, width - len(ids) :] = ids
        kept[row, width - len(ids) :] = 1
    return moved, kept


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def read_pieces(
    model: Any,
    piece: int,
    weights: DecodeWeights,
    layers: tuple[KVCache, ...] | None,
    tokens: jax.Array,
    mask: jax.Array,
    start: jax.Array,
    end: jax.Array,
) -> tuple[jax.Array, tuple[KVCache, ...]]:
    """Read the tokens of some slots piece by piece: one program for all lengths.

    Args:
        model: a `CausalTransformer` whose angles do not depend on a text's length.
        piece: tokens a row at a time; a divisor of S.
        weights: see `DecodeWeights`.
        layers: the cache that the slots before `start` are in; None for an empty one.
        tokens: int32 [N, S], each row's last token at slot `end - 1`.
        mask: [N, S], nonzero where a token is real.
        start: the first slot to read, a multiple of `piece`.
        end: past the last one.

    Returns:
        float32 [N, V], the logits after slot `end - 1`, and the cache [N * G, S, K] a layer.
    """
    spec, (rows, slots) = model.block_spec, tokens.shape
    positions = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    if layers is None:
        empty = jnp.zeros((rows * spec.num_kv_heads, slots, spec.head_features), spec.dtype)
        layers = tuple(KVCache(empty, empty) for _ in range(model.num_layers))

    def read(at: jax.Array, carry: tuple) -> tuple:
        slot = start + at * piece

        def part(whole: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(whole, slot, piece, axis=1)

        return decode_steps(
            model,
            weights,
            carry[1],
            tokens=part(tokens),
            positions=part(positions),
            visible=mask != 0,
            slot=slot,
            last=jnp.clip(end - 1 - slot, 0, piece - 1),
        )

    logits = jnp.zeros((rows, model.vocab_size), jnp.float32)
    count = -(-(end - start) // piece)
    return jax.lax.fori_loop(0, count, read, (logits, layers))


@partial(jax.jit, static_argnums=(0, 4))
def prefill(
    model: Any, variables: Variables, tokens: jax.Array, mask: jax.Array, slots: int
) -> Prefilled:
    """Run the model over left-padded prompts and keep every layer's keys and values.

    Args:
        model: a `CausalTransformer`.
        variables: its variables; the layers are scanned as in training.
        tokens: int32 [N, P], each row's last token at the right end.
        mask: [N, P], nonzero where a token is real.
        slots: S, at least P, room of the cache.
    """
    spec = model.block_spec
    positions = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    x = model.apply(variables, tokens, positions, method="embedded")
    sight = model.sight(positions, causal_mask(mask, None))
    shape = (*tokens.shape, spec.num_kv_heads, spec.head_features)
    empty = KVCache(jnp.zeros(shape, spec.dtype), jnp.zeros(shape, spec.dtype))

    def layer(x: jax.Array, part: tuple[dict, Any]) -> tuple[jax.Array, KVCache]:
        return Block(spec).apply(part[0], x, sight, part[1], empty, 0)  # pyright: ignore[reportReturnType]

    stacked = {name: tree["layers"] for name, tree in variables.items() if "layers" in tree}
    x, filled = jax.lax.scan(layer, x, (stacked, sight.kind))
    logits = model.apply(variables, x[:, -1], method="next_logits")
    room = ((0, 0), (0, 0), (0, 0), (0, slots - tokens.shape[1]), (0, 0))
    keys, values = (
        jnp.pad(part.transpose(0, 1, 3, 2, 4), room).reshape(
            model.num_layers, -1, slots, spec.head_features
        )
        for part in filled
    )
    layers = tuple(KVCache(keys[i], values[i]) for i in range(model.num_layers))
    return Prefilled(logits, layers)
