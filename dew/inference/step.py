"""The decode step: one token a row through every layer, over per-layer weights and the cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dew.inference.weights import DecodeWeights, LayerWeights, MLPWeights
from dew.nn.activations import activation
from dew.nn.attention import KVCache, capped, normed_heads
from dew.nn.backbones.causal_transformer import products, scaled_embedding
from dew.nn.block import BlockSpec, joined, mixture
from dew.nn.norms import NORMS
from dew.nn.rotary import rotate
from dew.nn.sight import Turn


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
    x = scaled_embedding(weights.embed[tokens], model.embed_scale)
    if weights.positions is not None:
        x = x + weights.positions[positions + model.position_offset]
    kinds = model.layer_kinds
    turns = {way: model.turn(positions[:, None], way) for way in {kind.way for kind in kinds}}
    close = visible
    if model.window is not None:
        close = visible & (jnp.arange(visible.shape[1]) > slot - model.window)
    filled = []
    for kind, layer, cache in zip(kinds, weights.layers, layers, strict=True):
        seen = close if kind.near else visible
        attention = _Attention(spec, layer, cache, turns[kind.way], seen, slot)
        x = joined(
            spec,
            lambda name, x, norms=layer.norms: _norm(spec, norms[name], x),
            attention,
            partial(_mlp, spec, layer.mlp),
            x,
        )
        filled.append(attention.cache)
    table = weights.embed if weights.head is None else weights.head
    hidden = x if weights.norm is None else _norm(spec, weights.norm, x)
    return model.scaled_logits(products(hidden, table)), tuple(filled)


@dataclass
class _Attention:
    """One layer's attention, which leaves its cache behind."""

    spec: BlockSpec
    layer: LayerWeights
    cache: KVCache
    turn: Turn | None
    visible: jax.Array
    slot: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return [N, D] of `x` [N, D]: each row's one query over the visible slots."""
        spec, layer = self.spec, self.layer
        heads, groups, width = spec.num_heads, spec.num_kv_heads, spec.head_features
        rows = _linear(x, layer.qkv, layer.qkv_bias).reshape(len(x), 1, heads + 2 * groups, width)
        query, key, value = jnp.split(rows, [heads, heads + groups], axis=2)
        if layer.head_norms is not None:
            query, key = (
                normed_heads(partial(_norm, spec, norm), part, spec.head_norm)
                for norm, part in zip(layer.head_norms, (query, key), strict=True)
            )
        if self.turn is not None:
            query, key = rotate(query, *self.turn), rotate(key, *self.turn)
        # One axis for row and group from write to product: a reshape between them would make XLA
        # write the slot twice, into two copies of the cache.
        query = query.reshape(-1, heads // groups, width)
        start = (0, self.slot, 0)
        cache = self.cache
        keys = jax.lax.dynamic_update_slice(cache.keys, key.reshape(-1, 1, width), start)
        values = jax.lax.dynamic_update_slice(cache.values, value.reshape(-1, 1, width), start)
        self.cache = KVCache(keys, values)
        scores = jax.lax.dot_general(
            query, keys, (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32
        ).reshape(len(x), heads, -1)
        scores = scores * (width**-0.5 if spec.score_scale is None else spec.score_scale)
        if spec.score_cap is not None:
            scores = capped(scores, spec.score_cap)
        scores = jnp.where(self.visible[:, None, :], scores, -jnp.inf)
        shares = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
        shares = shares.reshape(query.shape[0], heads // groups, -1)
        mixed = jax.lax.dot_general(shares, values, (((2,), (1,)), ((0,), (0,))))
        return _linear(mixed.reshape(len(x), heads * width), layer.out, layer.out_bias)


def _mlp(spec: BlockSpec, weights: MLPWeights | dict[str, jax.Array], x: jax.Array) -> jax.Array:
    if not isinstance(weights, MLPWeights):
        return mixture(spec, x, **weights)
    inner = _linear(x, weights.inner, weights.inner_bias)
    act = activation(spec.activation)
    if spec.mlp == "gated":
        gate, up = jnp.split(inner, 2, axis=-1)
        inner = act(gate) * up
    else:
        inner = act(inner)
    return _linear(inner, weights.down, weights.down_bias)


def _linear(x: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
    y = x @ matrix
    return y if bias is None else y + bias


def _norm(spec: BlockSpec, parameters: dict, x: jax.Array) -> jax.Array:
    norm = NORMS[spec.norm](spec.norm_epsilon, spec.param_dtype)
    return jnp.asarray(norm.apply({"params": parameters}, x))
