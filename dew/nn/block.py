"""One layer of a transformer: attention and an MLP, each with its norms and beside a residual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.nn.activations import activation
from dew.nn.attention import Attention, KVCache
from dew.nn.constraint import constrained
from dew.nn.dense import INIT_DEVIATION, Dense
from dew.nn.dropout import NO_DROPOUT, Dropout, dropped
from dew.nn.norms import NORMS
from dew.nn.recompute import recomputed
from dew.nn.sight import Sight


@dataclass(frozen=True)
class Experts:
    """The sizes of a mixture of experts in the MLP's place.

    Args:
        count: E, how many there are.
        chosen: how many of them each token is sent to.
        normalized: whether the chosen ones' shares are made to add up to 1.
    """

    count: int
    chosen: int
    normalized: bool = True


@dataclass(frozen=True)
class BlockSpec:
    """The sizes and choices of one layer, named as in `CausalTransformer`."""

    emb_features: int
    num_heads: int
    num_kv_heads: int
    head_features: int
    mlp_features: int
    norm: str
    norm_epsilon: float
    mlp: str
    activation: str
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    dtype: str
    param_dtype: str
    attention_impl: str
    adapter_scale: float
    norm_places: str = "before"
    head_norm: str = ""
    score_scale: float | None = None
    score_cap: float | None = None
    residual_scale: float = 1.0
    experts: Experts | None = None
    key_bias: bool = True
    dropout: Dropout = NO_DROPOUT

    def maps_with_bias(self, name: str) -> bool:
        """Say whether the map to "query", "key" or "value" has a bias."""
        return self.qkv_bias and (self.key_bias or name != "key")

    @property
    def norm_names(self) -> tuple[str, ...]:
        """The names of the layer's norms, those of queries and keys left out."""
        return NORM_PLACES[self.norm_places]


NORM_PLACES = {
    "before": ("attention_norm", "mlp_norm"),
    "after": ("attention_out_norm", "mlp_out_norm"),
    "around": ("attention_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm"),
    "residual": ("attention_norm", "mlp_norm"),
    "parallel": ("attention_norm", "mlp_norm"),
}
"""Where a layer's norms stand: before each branch (pre-norm), after it (OLMo 2), around it
(Gemma 2), on the residual stream behind it (the post-norm of Vaswani et al. 2017), or before both
branches of one sum (GPT-NeoX)."""


class MLP(nn.Module):
    """down(act(up x)), or down(act(gate x) * up x) where `mlp` is "gated".

    Source: Shazeer 2020, arXiv:2002.05202, for the gated form.
    """

    spec: BlockSpec

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `x` [B, L, D] to [B, L, D]."""
        spec = self.spec
        act = activation(spec.activation)
        up = self._dense(spec.mlp_features, "up")(x)
        if spec.mlp == "gated":
            gate = self._dense(spec.mlp_features, "gate")(x)
            inner = recomputed(lambda gate, up: act(gate) * up)(gate, up)
        else:
            inner = recomputed(act)(up)
        inner = dropped(self, inner, spec.dropout.mlp_inner)
        out = self._dense(spec.emb_features, "down")(inner)
        return dropped(self, out, spec.dropout.mlp_out)

    def _dense(self, features: int, name: str) -> Dense:
        spec = self.spec
        return Dense(
            (features,),
            use_bias=spec.mlp_bias,
            dtype=spec.dtype,
            param_dtype=spec.param_dtype,
            adapter_scale=spec.adapter_scale,
            name=name,
        )


class ExpertMLP(nn.Module):
    """Each token's sum of a few gated MLPs, weighted by the router's shares.

    Source: Jiang et al. 2024, arXiv:2401.04088, for shares of the softmax over all experts.
    """

    spec: BlockSpec

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `x` [B, L, D] to [B, L, D]."""
        spec, experts = self.spec, cast(Experts, self.spec.experts)
        init = nn.initializers.normal(INIT_DEVIATION)
        inner = (experts.count, spec.emb_features, spec.mlp_features)
        outer = (experts.count, spec.mlp_features, spec.emb_features)
        rows = x.reshape(-1, spec.emb_features)
        router = self.param("router", init, (spec.emb_features, experts.count), spec.param_dtype)
        gate, up, down = (
            self.param(name, init, shape, spec.param_dtype)
            for name, shape in (("gate", inner), ("up", inner), ("down", outer))
        )
        weights = [part.astype(spec.dtype) for part in (router, gate, up, down)]
        return mixture(spec, rows.astype(spec.dtype), *weights).reshape(x.shape)


def mixture(
    spec: BlockSpec,
    x: jax.Array,
    router: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    down: jax.Array,
) -> jax.Array:
    """Return each row's weighted sum of its experts.

    Args:
        spec: with `experts`.
        x: [N, D].
        router: [D, E].
        gate, up: [E, D, F].
        down: [E, F, D].

    Returns:
        [N, D].
    """
    experts = cast(Experts, spec.experts)
    act = activation(spec.activation)
    shares = jax.nn.softmax((x @ router).astype(jnp.float32), axis=-1)
    shares, chosen = jax.lax.top_k(shares, experts.chosen)
    if experts.normalized:
        shares = shares / jnp.sum(shares, axis=-1, keepdims=True)
    # Rows sorted by expert: each expert's are one product.
    order = jnp.argsort(chosen.reshape(-1), stable=True)
    sizes = jnp.bincount(chosen.reshape(-1), length=experts.count).astype(jnp.int32)
    rows = x[order // experts.chosen]
    inner = jax.lax.ragged_dot(rows, gate, sizes), jax.lax.ragged_dot(rows, up, sizes)
    out = jax.lax.ragged_dot(act(inner[0]) * inner[1], down, sizes)
    out = out * shares.reshape(-1)[order, None].astype(out.dtype)
    back = jnp.zeros_like(out).at[order].set(out)
    return jnp.sum(back.reshape(len(x), experts.chosen, -1), axis=1)


class Block(nn.Module):
    """A layer: attention and an MLP, normed and added as the spec's `norm_places` says."""

    spec: BlockSpec

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        sight: Sight,
        kind: jax.Array | None,
        cache: KVCache | None = None,
        slot: jax.Array | int = 0,
    ) -> tuple[jax.Array, KVCache | None]:
        """Run the layer on `x` [B, L, D].

        Args:
            x: the residual stream.
            sight: of all layers.
            kind: this layer's element of `sight.kind`.
            cache: as for `Attention`.
            slot: as for `Attention`.
        """
        spec = self.spec
        turn, mask = sight.layer(kind)
        attention = Attention(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_features=spec.head_features,
            out_features=spec.emb_features,
            qkv_bias=spec.qkv_bias,
            out_bias=spec.out_bias,
            dtype=spec.dtype,
            param_dtype=spec.param_dtype,
            attention_impl=spec.attention_impl,
            adapter_scale=spec.adapter_scale,
            head_norm=spec.head_norm,
            norm=spec.norm,
            norm_epsilon=spec.norm_epsilon,
            score_scale=spec.score_scale,
            score_cap=spec.score_cap,
            dropout=spec.dropout.attention,
            name="attention",
        )
        kept: list[KVCache | None] = []

        def mixed(x: jax.Array) -> jax.Array:
            out, filled = attention(x, turn, mask, cache, slot)
            kept.append(filled)
            return dropped(self, out, spec.dropout.attention_out)

        def normed(name: str, x: jax.Array) -> jax.Array:
            return NORMS[spec.norm](spec.norm_epsilon, spec.param_dtype, name=name)(x)

        mlp = MLP if spec.experts is None else ExpertMLP
        x = joined(spec, normed, mixed, mlp(spec, name="mlp"), x)
        return x, kept[0]


def joined(
    spec: BlockSpec,
    normed: Callable[[str, jax.Array], jax.Array],
    attention: Callable[[jax.Array], jax.Array],
    mlp: Callable[[jax.Array], jax.Array],
    x: jax.Array,
) -> jax.Array:
    """Return `x` with both branches added to it.

    Args:
        spec: says where the norms stand; `residual_scale` multiplies what is added.
        normed: applies the norm of a name, of `norm_names`.
        attention: the first branch.
        mlp: the second.
        x: [..., D].
    """
    if spec.norm_places == "parallel":
        # The sum in the order of transformers' classes: its last bit depends on it.
        seen = normed("attention_norm", x), normed("mlp_norm", x)
        return _held(mlp(seen[1]) + attention(seen[0]) + x)
    for name, branch in (("attention", attention), ("mlp", mlp)):
        before = spec.norm_places in ("before", "around")
        added = branch(normed(f"{name}_norm", x) if before else x)
        if spec.norm_places in ("after", "around"):
            added = normed(f"{name}_out_norm", added)
        if spec.residual_scale != 1.0:
            added = added * spec.residual_scale
        x = x + added
        if spec.norm_places == "residual":
            x = normed(f"{name}_norm", x)
        x = _held(x)
    return x


def _held(x: jax.Array) -> jax.Array:
    return constrained(x, "batch", "length", None) if x.ndim == 3 else x
