"""The decode step: one token a row through every layer, over per-layer weights and the cache."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dew.inference.cache import next_logits
from dew.inference.weights import DecodeWeights, LayerWeights
from dew.nn.activations import activation
from dew.nn.attention import KVCache
from dew.nn.block import BlockSpec
from dew.nn.norms import NORMS
from dew.nn.rotary import rotate

Turn = tuple[jax.Array, jax.Array] | None


def decode_step(
    model: Any,
    weights: DecodeWeights,
    layers: tuple[KVCache, ...],
    *,
    tokens: jax.Array,
    positions: jax.Array,
    visible: jax.Array,
    slot: jax.Array,
) -> tuple[jax.Array, tuple[KVCache, ...]]:
    """Return the logits that follow one more token a row, and the cache that now holds it.

    The layers are unrolled: a scan would copy each layer's weights before it used them.

    Args:
        model: the `CausalTransformer` that the weights come from.
        weights: see `DecodeWeights`.
        layers: keys and values [N * G, S, K] of each layer.
        tokens: int32 [N].
        positions: int32 [N], each token's index among the row's real tokens.
        visible: bool [N, S], the slots that the row may look at, `slot` among them.
        slot: where the tokens' keys and values go, the same for every row.

    Returns:
        float32 [N, V], and the filled cache.
    """
    spec = model.block_spec
    x = weights.embed[tokens]
    if weights.positions is not None:
        x = x + weights.positions[positions]
    turn = model.turn(positions[:, None])
    filled = []
    for layer, cache in zip(weights.layers, layers, strict=True):
        x, cache = _layer(spec, layer, x, cache, turn=turn, visible=visible, slot=slot)
        filled.append(cache)
    table = weights.embed if weights.head is None else weights.head
    return next_logits(_norm(spec, weights.norm, x), table), tuple(filled)


def _layer(
    spec: BlockSpec,
    layer: LayerWeights,
    x: jax.Array,
    cache: KVCache,
    *,
    turn: Turn,
    visible: jax.Array,
    slot: jax.Array,
) -> tuple[jax.Array, KVCache]:
    seen = _norm(spec, layer.attention_norm, x)
    mixed, cache = _attention(
        spec, _linear(seen, layer.qkv, layer.qkv_bias), cache, turn, visible, slot
    )
    x = x + _linear(mixed, layer.out, layer.out_bias)
    inner = _linear(_norm(spec, layer.mlp_norm, x), layer.inner, layer.inner_bias)
    act = activation(spec.activation)
    if spec.mlp == "gated":
        gate, up = jnp.split(inner, 2, axis=-1)
        inner = act(gate) * up
    else:
        inner = act(inner)
    return x + _linear(inner, layer.down, layer.down_bias), cache


def _attention(
    spec: BlockSpec,
    qkv: jax.Array,
    cache: KVCache,
    turn: Turn,
    visible: jax.Array,
    slot: jax.Array,
) -> tuple[jax.Array, KVCache]:
    """Return [N, H * K]: each row's one query over the visible slots."""
    heads, groups, width = spec.num_heads, spec.num_kv_heads, spec.head_features
    rows = qkv.reshape(len(qkv), 1, heads + 2 * groups, width)
    query, key, value = jnp.split(rows, [heads, heads + groups], axis=2)
    if turn is not None:
        query, key = rotate(query, *turn), rotate(key, *turn)
    # One axis for row and group from write to product: a reshape between them would make XLA
    # write the slot twice, into two copies of the cache.
    query = query.reshape(-1, heads // groups, width)
    start = (0, slot, 0)
    keys = jax.lax.dynamic_update_slice(cache.keys, key.reshape(-1, 1, width), start)
    values = jax.lax.dynamic_update_slice(cache.values, value.reshape(-1, 1, width), start)
    scores = jax.lax.dot_general(
        query, keys, (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32
    ).reshape(len(qkv), heads, -1)
    scores = jnp.where(visible[:, None, :], scores * width**-0.5, -jnp.inf)
    shares = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    shares = shares.reshape(query.shape[0], heads // groups, -1)
    mixed = jax.lax.dot_general(shares, values, (((2,), (1,)), ((0,), (0,))))
    return mixed.reshape(len(qkv), heads * width), KVCache(keys, values)


def _linear(x: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
    y = x @ matrix
    return y if bias is None else y + bias


def _norm(spec: BlockSpec, parameters: dict, x: jax.Array) -> jax.Array:
    norm = NORMS[spec.norm](spec.norm_epsilon, spec.param_dtype)
    return jnp.asarray(norm.apply({"params": parameters}, x))
