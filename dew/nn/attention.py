"""Grouped-query self-attention, over a whole sequence or over a cache."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.errors import InputRefused
from dew.nn.dense import Dense
from dew.nn.dropout import Kept, drawn
from dew.nn.norms import NORMS
from dew.nn.recompute import recomputed
from dew.nn.rotary import rotate
from dew.nn.softmax_attention import softmax_attention

ATTENTION_IMPLS = ("auto", "xla", "cudnn")
CUDNN_HEAD_FEATURES = 128


class KVCache(NamedTuple):
    """Keys and values of the slots seen so far, one layer's: [B, S, G, K] each."""

    keys: jax.Array
    values: jax.Array


class Attention(nn.Module):
    """Self-attention with H query heads that share G key and value heads.

    `head_norm` norms queries and keys before they are turned: "head" each head, "width" all heads
    of a token as one, "" not at all. `score_scale` (None: 1 / √K) multiplies the scores, and
    `score_cap` c bends them to c tanh(score / c). `dropout` is the share of the weights to drop.

    Source: Ainslie et al. 2023, arXiv:2305.13245 (G = H is Vaswani et al. 2017).
    """

    num_heads: int
    num_kv_heads: int
    head_features: int
    out_features: int
    qkv_bias: bool = False
    out_bias: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"
    attention_impl: str = "auto"
    adapter_scale: float = 1.0
    head_norm: str = ""
    norm: str = "rms"
    norm_epsilon: float = 1e-6
    score_scale: float | None = None
    score_cap: float | None = None
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        turn: tuple[jax.Array, jax.Array] | None,
        mask: jax.Array | None,
        cache: KVCache | None = None,
        slot: jax.Array | int = 0,
    ) -> tuple[jax.Array, KVCache | None]:
        """Attend over `x`, or over `cache` with the keys and values of `x` written at `slot`.

        Args:
            x: [B, L, D].
            turn: cos and sin of `dew.nn.rotary.angles`, or None for no rotation.
            mask: bool [B, 1, L, S], True where a query may look; None means causal, no cache.
            cache: S slots; None attends over `x` alone (S = L).
            slot: the first of the L slots that `x` fills.

        Returns:
            [B, L, D], and the cache with those slots filled (None without one).
        """
        query = self._heads(self.num_heads, "query")(x)
        key = self._heads(self.num_kv_heads, "key")(x)
        value = self._heads(self.num_kv_heads, "value")(x)
        if self.head_norm:
            query, key = (
                normed_heads(self._norm(f"{name}_norm"), heads, self.head_norm)
                for name, heads in (("query", query), ("key", key))
            )
        if turn is not None:
            query, key = rotate(query, *turn), rotate(key, *turn)
        if cache is not None:
            start = (0, slot, 0, 0)
            key = jax.lax.dynamic_update_slice(cache.keys, key.astype(cache.keys.dtype), start)
            value = jax.lax.dynamic_update_slice(
                cache.values, value.astype(cache.values.dtype), start
            )
            cache = KVCache(key, value)
        mixed = attend(
            query,
            key,
            value,
            mask,
            self.attention_impl,
            scale=self.score_scale,
            cap=self.score_cap,
            kept=drawn(self, weights_shape(query, key), self.dropout),
        )
        out = Dense(
            (self.out_features,),
            inputs=2,
            use_bias=self.out_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            adapter_scale=self.adapter_scale,
            name="out",
        )(mixed)
        return out, cache

    def _norm(self, name: str) -> nn.Module:
        return NORMS[self.norm](self.norm_epsilon, self.param_dtype, name=name)

    def _heads(self, heads: int, name: str) -> Dense:
        return Dense(
            (heads, self.head_features),
            use_bias=self.qkv_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            adapter_scale=self.adapter_scale,
            name=name,
        )


def normed_heads(norm: Any, heads: jax.Array, over: str) -> jax.Array:
    """Return `heads` [B, L, H, K] normed, each "head" or the whole "width" of a token."""
    if over == "head":
        return norm(heads)
    return norm(heads.reshape(*heads.shape[:-2], -1)).reshape(heads.shape)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
    impl: str = "auto",
    *,
    scale: float | None = None,
    cap: float | None = None,
    kept: Kept | None = None,
) -> jax.Array:
    """Return softmax(q kᵀ / √K) v; query head i reads key head i // (H / G).

    Args:
        query: [B, L, H, K].
        key, value: [B, S, G, K].
        mask: bool [B, 1, L, S] or None for causal. A row that sees nothing gives the mean of
            `value`, finite with finite gradients, and must not count.
        impl: one of `ATTENTION_IMPLS`.
        scale: multiplies the scores; None for 1 / √K.
        cap: c of c tanh(score / c), or None; such scores are always computed by XLA.
        kept: which weights stay, bool [B, H, L, S], or None; then XLA computes too.

    Returns:
        [B, L, H, K].
    """
    if cap is not None:
        if kept is not None:
            raise InputRefused("capped scores know no dropout of their weights; set it to 0")
        return recomputed(partial(_capped, scale=scale, cap=cap))(query, key, value, mask)
    # One query, a step of decoding: XLA reads the cache where it lies.
    chosen = _implementation(impl, query)
    if kept is None and (chosen == "cudnn" or query.shape[1] == 1):
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            mask=mask,
            scale=scale,
            is_causal=mask is None,
            implementation=chosen,
        )
    length, slots = query.shape[1], key.shape[1]
    if mask is None:
        mask = jnp.tril(jnp.ones((length, slots), bool))[None, None]
    return softmax_attention(query, key, value, mask, scale=scale, kept=kept)


def weights_shape(query: jax.Array, key: jax.Array) -> tuple[int, int, int, int]:
    """Return [B, H, L, S] of queries [B, L, H, K] and keys [B, S, G, K]: the weights' shape."""
    batch, length, heads, _ = query.shape
    return batch, heads, length, key.shape[1]


def _capped(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None, *, scale, cap: float
) -> jax.Array:
    batch, length, heads, width = query.shape
    groups, slots = key.shape[2], key.shape[1]
    query = query.reshape(batch, length, groups, heads // groups, width)
    scores = jnp.einsum("blghk,bsgk->bghls", query, key, preferred_element_type=jnp.float32)
    scores = capped(scores * (width**-0.5 if scale is None else scale), cap)
    if mask is None:
        mask = jnp.tril(jnp.ones((length, slots), bool))[None, None]
    scores = jnp.where(mask[:, :, None], scores, jnp.finfo(jnp.float32).min)
    shares = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum("bghls,bsgk->blghk", shares, value).reshape(batch, length, heads, width)


def capped(scores: jax.Array, cap: float) -> jax.Array:
    """Return c tanh(scores / c), from Gemma 2's report, arXiv:2408.00118."""
    return cap * jnp.tanh(scores / cap)


def causal_mask(mask: jax.Array | None, segments: jax.Array | None) -> jax.Array | None:
    """Return bool [B, 1, L, L]: earlier, real tokens of the same document; None if only causal.

    Args:
        mask: [B, L], nonzero where a token is real, or None.
        segments: int32 [B, L], the document of each token and 0 for padding, or None.
    """
    given = mask if mask is not None else segments
    if given is None:
        return None
    length = given.shape[1]
    allowed = jnp.tril(jnp.ones((length, length), bool))[None]
    if mask is not None:
        allowed = allowed & (mask != 0)[:, None, :]
    if segments is not None:
        allowed = allowed & (segments[:, :, None] == segments[:, None, :])
    return allowed[:, None]


def _implementation(impl: str, query: jax.Array) -> Literal["xla", "cudnn"]:
    if impl not in ATTENTION_IMPLS:
        raise InputRefused(
            f"attention_impl {impl!a:.200} is not known; choose one of {', '.join(ATTENTION_IMPLS)}"
        )
    if impl != "auto":
        return cast(Literal["xla", "cudnn"], impl)
    half = query.dtype in (jnp.float16, jnp.bfloat16)
    fits = query.shape[-1] % 8 == 0 and query.shape[-1] <= CUDNN_HEAD_FEATURES
    return "cudnn" if jax.default_backend() == "gpu" and half and fits else "xla"
