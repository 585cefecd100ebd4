"""The decode step: tokens of each row through every layer, over per-layer weights and the cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dew.inference.narrow import product, row_products, table_rows
from dew.inference.weights import DecodeWeights, LayerWeights, Matrix, MLPWeights
from dew.nn.activations import activation
from dew.nn.attention import KVCache, capped, normed_heads
from dew.nn.backbones.causal_transformer import scaled_embedding
from dew.nn.block import BlockSpec, joined, mixture
from dew.nn.norms import NORMS
from dew.nn.rotary import rotate
from dew.nn.sight import Turn

# Not infinity: a token of padding sees no slot, and must not become NaN.
REMOVED = jnp.finfo(jnp.float32).min


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
    x, filled = _through(
        model, weights, layers, tokens[:, None], positions[:, None], visible[:, None], slot
    )
    return _logits(model, weights, x), filled


def decode_steps(
    model: Any,
    weights: DecodeWeights,
    layers: tuple[KVCache, ...],
    *,
    tokens: jax.Array,
    positions: jax.Array,
    visible: jax.Array,
    slot: jax.Array,
    last: jax.Array | None = None,
) -> tuple[jax.Array, tuple[KVCache, ...]]:
    """Return the logits that follow several more tokens a row, and the cache that holds them.

    Args:
        model: as `decode_step`.
        weights: as `decode_step`.
        layers: as `decode_step`.
        tokens: int32 [N, W].
        positions: int32 [N, W].
        visible: bool [N, S], the slots of real tokens, these tokens' too; each looks at those up
            to its own.
        slot: of the first of them.
        last: the one token whose logits are asked for; None for all.

    Returns:
        float32 [N, W, V], or [N, V] with `last`; and the filled cache.
    """
    count = tokens.shape[1]
    own = slot + jnp.arange(count)[:, None]
    seen = visible[:, None] & (jnp.arange(visible.shape[1]) <= own)
    x, filled = _through(model, weights, layers, tokens, positions, seen, slot)
    if last is not None:
        return _logits(model, weights, x.reshape(*tokens.shape, -1)[:, last]), filled
    return _logits(model, weights, x).reshape(*tokens.shape, -1), filled


def _logits(model: Any, weights: DecodeWeights, x: jax.Array) -> jax.Array:
    table = weights.embed if weights.head is None else weights.head
    hidden = x if weights.norm is None else _norm(model.block_spec, weights.norm, x)
    return model.scaled_logits(row_products(hidden, table))


def _through(
    model: Any,
    weights: DecodeWeights,
    layers: tuple[KVCache, ...],
    tokens: jax.Array,
    positions: jax.Array,
    visible: jax.Array,
    slot: jax.Array,
) -> tuple[jax.Array, tuple[KVCache, ...]]:
    """Return the stream [N * W, D] behind the last layer, and the filled cache.

    The layers are unrolled: a scan would copy each layer's weights before it used them.

    Args:
        model: as `decode_step`.
        weights: as `decode_step`.
        layers: as `decode_step`.
        tokens: int32 [N, W].
        positions: int32 [N, W].
        visible: bool [N, W, S], what each token may look at where no window cuts it.
        slot: of the first token.
    """
    spec = model.block_spec
    places = positions.reshape(-1)
    x = table_rows(weights.embed, tokens.reshape(-1), spec.dtype)
    x = scaled_embedding(x, model.embed_scale)
    if weights.positions is not None:
        x = x + weights.positions[places + model.position_offset]
    kinds = model.layer_kinds
    turns = {way: model.turn(positions, way) for way in {kind.way for kind in kinds}}
    close = visible
    if model.window is not None:
        own = slot + jnp.arange(tokens.shape[1])[:, None]
        close = visible & (jnp.arange(visible.shape[2]) > own - model.window)
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
    return x, tuple(filled)


@dataclass
class _Attention:
    """One layer's attention, which leaves its cache behind; `visible` is bool [N, W, S]."""

    spec: BlockSpec
    layer: LayerWeights
    cache: KVCache
    turn: Turn | None
    visible: jax.Array
    slot: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return [N * W, D] of `x` [N * W, D]: each token's query over its visible slots."""
        spec, layer = self.spec, self.layer
        heads, groups, width = spec.num_heads, spec.num_kv_heads, spec.head_features
        count, many, _ = self.visible.shape
        rows = _linear(x, layer.qkv, layer.qkv_bias)
        rows = rows.reshape(count, many, heads + 2 * groups, width)
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
        query = query.reshape(count, many, groups, heads // groups, width)
        query = query.transpose(0, 2, 3, 1, 4).reshape(count * groups, -1, width)
        key, value = (
            part.transpose(0, 2, 1, 3).reshape(count * groups, many, width) for part in (key, value)
        )
        start = (0, self.slot, 0)
        keys = jax.lax.dynamic_update_slice(self.cache.keys, key, start)
        values = jax.lax.dynamic_update_slice(self.cache.values, value, start)
        self.cache = KVCache(keys, values)
        scores = jax.lax.dot_general(
            query, keys, (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32
        ).reshape(count, heads, many, -1)
        scores = scores * (width**-0.5 if spec.score_scale is None else spec.score_scale)
        if spec.score_cap is not None:
            scores = capped(scores, spec.score_cap)
        scores = jnp.where(self.visible[:, None], scores, REMOVED)
        shares = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
        shares = shares.reshape(query.shape[0], query.shape[1], -1)
        mixed = jax.lax.dot_general(shares, values, (((2,), (1,)), ((0,), (0,))))
        mixed = mixed.reshape(count, groups, heads // groups, many, width)
        mixed = mixed.transpose(0, 3, 1, 2, 4).reshape(count * many, heads * width)
        return _linear(mixed, layer.out, layer.out_bias)


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


def _linear(x: jax.Array, matrix: Matrix, bias: jax.Array | None) -> jax.Array:
    y = product(x, matrix)
    return y if bias is None else y + bias


def _norm(spec: BlockSpec, parameters: dict, x: jax.Array) -> jax.Array:
    norm = NORMS[spec.norm](spec.norm_epsilon, spec.param_dtype)
    return jnp.asarray(norm.apply({"params": parameters}, x))
