"""The decoder-only transformer: rotary or learned positions, grouped heads, tied or own head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.errors import InputRefused
from dew.nn.attention import capped, causal_mask
from dew.nn.block import NORM_PLACES, BlockSpec, Experts
from dew.nn.constraint import constrained
from dew.nn.dense import INIT_DEVIATION
from dew.nn.dropout import NO_DROPOUT, Dropout, dropped
from dew.nn.norms import NORMS
from dew.nn.rotary import Rope, angles
from dew.nn.sight import Sight, Turn, near
from dew.nn.stack import block_stack

EXAMPLE = 8


class LayerKind(NamedTuple):
    """How a layer looks: `near` through the window or not, and the `way` its positions turn."""

    near: bool
    way: str


class Table(nn.Module):
    """A table of rows looked up by index: `table` [rows, features]."""

    rows: int
    features: int
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self) -> jax.Array:
        """Return the table itself."""
        init = nn.initializers.normal(INIT_DEVIATION)
        return self.param("table", init, (self.rows, self.features), self.param_dtype)


class CausalTransformer(nn.Module):
    """Maps token ids [B, L] to next-token logits [B, L, V].

    The layers' parameters are stacked along a first axis and scanned.

    Args:
        vocab_size: V, rows of the embedding and of the head.
        emb_features: D, width of the residual stream.
        num_layers, num_heads, mlp_features: depth, query heads H and inner width of the MLP.
        max_seq_len: the context in tokens; the number of rows of learned positions.
        num_kv_heads: G, key and value heads; None means H.
        head_features: K, width of a head; None means D / H.
        norm: "rms", "rms_offset" or "layer"; `norm_epsilon` is added to the variance.
        norm_places: where a layer's norms stand, see `dew.nn.block.NORM_PLACES`.
        head_norm: norm queries and keys, each "head" or the whole "width"; "" for neither.
        final_norm: whether the last layer's output is normed.
        mlp: "gated" or "plain"; `activation` is a Hugging Face activation name.
        experts: a mixture of gated MLPs in the MLP's place, `mlp_features` wide each.
        positions: "rotary" (turned as `rope` says) or "learned".
        rotary_features: how many features of a head are turned; None for all.
        position_offset: rows of the position table before that of position 0.
        window: how many tokens a layer looks back at, its own included; None for all.
        windowed: which layers have that window; empty for all of them.
        local_rope: how windowed layers turn; None as the others.
        unturned: which layers do not turn at all; empty for none.
        tied_head: the head's table is the embedding's.
        qkv_bias, out_bias, mlp_bias: which linear maps carry a bias.
        embed_scale: multiplies the embedded tokens.
        residual_scale: multiplies what each branch adds.
        score_scale, score_cap: of the attention's scores, see `dew.nn.attention.Attention`.
        logit_scale: multiplies the logits; `logit_cap` c then bends them to c tanh(logit / c).
        dtype: what activations are computed in; `param_dtype` is what parameters are stored in.
        attention_impl: "auto", "xla" or "cudnn".
        remat: recompute each layer in the backward pass instead of keeping its activations.
        adapter_scale: factor of the low-rank path where the `lora` collection is given.
        dropout: what is zeroed while the model learns, where a `dropout` key is given.
    """

    input_names: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "position_ids")
    tasks: ClassVar[tuple[str, ...]] = ("text-generation",)
    counts_real_tokens: ClassVar[bool] = True

    vocab_size: int
    emb_features: int
    num_layers: int
    num_heads: int
    mlp_features: int
    max_seq_len: int
    num_kv_heads: int | None = None
    head_features: int | None = None
    norm: str = "rms"
    norm_epsilon: float = 1e-6
    mlp: str = "gated"
    activation: str = "silu"
    positions: str = "rotary"
    rope: Rope = Rope()
    tied_head: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"
    attention_impl: str = "auto"
    remat: bool = False
    adapter_scale: float = 1.0
    norm_places: str = "before"
    head_norm: str = ""
    final_norm: bool = True
    experts: Experts | None = None
    rotary_features: int | None = None
    position_offset: int = 0
    window: int | None = None
    windowed: tuple[bool, ...] = ()
    local_rope: Rope | None = None
    unturned: tuple[bool, ...] = ()
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    score_scale: float | None = None
    score_cap: float | None = None
    logit_scale: float = 1.0
    logit_cap: float | None = None
    dropout: Dropout = NO_DROPOUT

    def setup(self) -> None:
        """Declare the tables, the scanned layers and the last norm."""
        self._check()
        self.embed = Table(self.vocab_size, self.emb_features, self.param_dtype)
        if self.positions == "learned":
            rows = self.max_seq_len + self.position_offset
            self.position_embed = Table(rows, self.emb_features, self.param_dtype)
        self.layers = block_stack(self.block_spec, self.num_layers, remat=self.remat)
        if self.final_norm:
            norm = NORMS[self.norm]
            self.last = norm(self.norm_epsilon, self.param_dtype, name="final_norm")
        if not self.tied_head:
            self.head = Table(self.vocab_size, self.emb_features, self.param_dtype)

    @property
    def head_width(self) -> int:
        """K, the width of one head."""
        return self.head_features or self.emb_features // self.num_heads

    @property
    def kv_heads(self) -> int:
        """G, the number of key and value heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def position_limit(self) -> int | None:
        """How many positions the model may see; None where dynamic rotary scaling grows with it."""
        grows = self.positions == "rotary" and self.rope.kind == "dynamic"
        return None if grows else self.max_seq_len

    @property
    def block_spec(self) -> BlockSpec:
        """The sizes of one layer, for code that runs layers one by one."""
        return BlockSpec(
            emb_features=self.emb_features,
            num_heads=self.num_heads,
            num_kv_heads=self.kv_heads,
            head_features=self.head_width,
            mlp_features=self.mlp_features,
            norm=self.norm,
            norm_epsilon=self.norm_epsilon,
            mlp=self.mlp,
            activation=self.activation,
            qkv_bias=self.qkv_bias,
            out_bias=self.out_bias,
            mlp_bias=self.mlp_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            attention_impl=self.attention_impl,
            adapter_scale=self.adapter_scale,
            norm_places=self.norm_places,
            head_norm=self.head_norm,
            score_scale=self.score_scale,
            score_cap=self.score_cap,
            residual_scale=self.residual_scale,
            experts=self.experts,
            dropout=self.dropout,
        )

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """How each layer looks at the others' places."""
        windowed = self.windowed or (self.window is not None,) * self.num_layers
        unturned = self.unturned or (False,) * self.num_layers
        return tuple(
            LayerKind(near, "none" if still else "local" if near and self.local_rope else "global")
            for near, still in zip(windowed, unturned, strict=True)
        )

    def __call__(
        self,
        tokens: jax.Array,
        *,
        mask: jax.Array | None = None,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
    ) -> jax.Array:
        """Return the logits of the token that follows each token.

        Args:
            tokens: int32 [B, L], ids in [0, V).
            mask: [B, L], nonzero where a token is real; padding may stand on either side.
            positions: int32 [B, L]; None counts real tokens from 0, anew in each document.
            segments: int32 [B, L], the document of each token, 0 for padding. Documents do not
                see each other.

        Returns:
            float32 [B, L, V].
        """
        hidden = self.hidden(tokens, mask=mask, positions=positions, segments=segments)
        logits = jnp.einsum(
            "bld,vd->blv",
            hidden,
            self.head_table().astype(self.dtype),
            preferred_element_type=jnp.float32,
        )
        return self.scaled_logits(logits)

    def outputs(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        position_ids: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Return `logits` [B, L, V]: a call by Hugging Face's names."""
        return {"logits": self(input_ids, mask=attention_mask, positions=position_ids)}

    def example_inputs(self) -> dict[str, np.ndarray]:
        """Return inputs for a short run that says whether two models are the same."""
        return {"input_ids": example_ids(self.vocab_size, min(EXAMPLE, self.max_seq_len // 2))}

    def hidden(
        self,
        tokens: jax.Array,
        *,
        mask: jax.Array | None = None,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
    ) -> jax.Array:
        """Return the normed output of the last layer, [B, L, D]; arguments as for a call."""
        if positions is None:
            positions = token_positions(tokens.shape, mask, segments)
        x = self.embedded(tokens, positions)
        sight = self.sight(positions, causal_mask(mask, segments))
        x, _ = self.layers(x, sight, sight.kind)
        return self.last(x) if self.final_norm else x

    def embedded(self, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        """Return [B, L, D]: token rows, plus position rows where positions are learned."""
        x = jnp.take(self.embed(), tokens, axis=0, mode="clip").astype(self.dtype)
        x = scaled_embedding(x, self.embed_scale)
        if self.positions == "learned":
            places = positions + self.position_offset
            rows = jnp.take(self.position_embed(), places, axis=0, mode="clip")
            x = x + rows.astype(self.dtype)
        x = dropped(self, x, self.dropout.embedding)
        return constrained(x, "batch", "length", None)

    def turn(self, positions: jax.Array, way: str = "global") -> Turn | None:
        """Return rotary cos and sin of `positions` [B, L], or None where they are learned.

        Args:
            positions: int32 [B, L].
            way: "global" as `rope` says, "local" as `local_rope` says, "none" not at all.
        """
        if self.positions != "rotary":
            return None
        features = self.rotary_features or self.head_width
        if way == "none":
            still = jnp.ones((*positions.shape, features // 2), jnp.float32)
            return still, jnp.zeros_like(still)
        rope = self.local_rope if way == "local" else self.rope
        return angles(rope or self.rope, positions, features=features, max_seq_len=self.max_seq_len)

    def sight(
        self, positions: jax.Array, allowed: jax.Array | None, slot: jax.Array | int = 0
    ) -> Sight:
        """Return what the layers need to know of places.

        Args:
            positions: int32 [B, L], of the tokens that look.
            allowed: bool [B, 1, L, S], the slots that they may look at without a window; None
                for causal (S = L).
            slot: the slot of the first of them.
        """
        layers, length = self.layer_kinds, positions.shape[1]
        kinds = tuple(dict.fromkeys(layers))
        turns = {way: self.turn(positions, way) for way in dict.fromkeys(k.way for k in kinds)}
        close = near(allowed, length, self.window, slot) if self.window is not None else allowed
        return Sight.of(
            [turns[kind.way] for kind in kinds],
            [close if kind.near else allowed for kind in kinds],
            [kinds.index(kind) for kind in layers],
            length,
        )

    def next_logits(self, x: jax.Array) -> jax.Array:
        """Return float32 logits [N, V] of the stream [N, D] behind the last layer."""
        hidden = self.last(x) if self.final_norm else x
        return self.scaled_logits(products(hidden, self.head_table()))

    def scaled_logits(self, logits: jax.Array) -> jax.Array:
        """Return float32 logits [..., V] as `logit_scale` and `logit_cap` change the products."""
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        return logits if self.logit_cap is None else capped(logits, self.logit_cap)

    def head_table(self) -> jax.Array:
        """Return the head's rows [V, D]: the embedding's where the head is tied."""
        return self.embed() if self.tied_head else self.head()

    def hidden_and_table(self, tokens: jax.Array, **inputs: jax.Array | None):
        """Return `hidden` and `head_table`, for losses that never build all logits.

        Their product is the logits but for `logit_cap`, which the losses apply.
        """
        hidden = self.hidden(tokens, **inputs)
        if self.logit_scale != 1.0:
            hidden = hidden * jnp.asarray(self.logit_scale, hidden.dtype)
        return hidden, self.head_table()

    def parameter_shapes(self) -> dict:
        """Return the shapes of `init`'s parameters, without the quarter second of tracing it."""
        self._check()
        sizes = {
            "embed": self.emb_features,
            "mlp": self.mlp_features,
            "heads": self.num_heads,
            "kv_heads": self.kv_heads,
            "head": self.head_width,
            "vocab": self.vocab_size,
            "table_features": self.emb_features,
            "positions": self.max_seq_len + self.position_offset,
            "layers": self.num_layers,
            "norm": self.emb_features,
            "query_norm": self.num_heads * self.head_width,
            "key_norm": self.kv_heads * self.head_width,
            "experts": 0 if self.experts is None else self.experts.count,
        }
        return _each(
            self.parameter_axes(),
            lambda axes: jax.ShapeDtypeStruct(tuple(sizes[a] for a in axes), self.param_dtype),
        )

    def parameter_axes(self) -> dict:
        """Return the name of each axis of each parameter: what a layout's rules speak of."""
        attention = {
            "query": _linear(("embed",), ("heads", "head"), self.qkv_bias),
            "key": _linear(("embed",), ("kv_heads", "head"), self.qkv_bias),
            "value": _linear(("embed",), ("kv_heads", "head"), self.qkv_bias),
            "out": _linear(("heads", "head"), ("embed",), self.out_bias),
        }
        if self.head_norm:
            for name in ("query", "key"):
                width = "head" if self.head_norm == "head" else f"{name}_norm"
                attention[f"{name}_norm"] = _norm(self.norm, width)
        layer = {
            "attention": attention,
            "mlp": self._mlp_axes(),
            **{name: _norm(self.norm, "norm") for name in self.block_spec.norm_names},
        }
        axes = {
            "embed": {"table": ("vocab", "table_features")},
            "layers": _each(layer, lambda names: ("layers", *names)),
        }
        if self.final_norm:
            axes["final_norm"] = _norm(self.norm, "norm")
        if self.positions == "learned":
            axes["position_embed"] = {"table": ("positions", "table_features")}
        if not self.tied_head:
            axes["head"] = {"table": ("vocab", "table_features")}
        return axes

    def _mlp_axes(self) -> dict:
        if self.experts is not None:
            inner = ("experts", "embed", "mlp")
            outer = ("experts", "mlp", "embed")
            return {"router": ("embed", "experts"), "gate": inner, "up": inner, "down": outer}
        names = ("gate", "up") if self.mlp == "gated" else ("up",)
        mlp = {name: _linear(("embed",), ("mlp",), self.mlp_bias) for name in names}
        return {**mlp, "down": _linear(("mlp",), ("embed",), self.mlp_bias)}

    def _check(self) -> None:
        if self.head_features is None and self.emb_features % self.num_heads:
            raise InputRefused(
                f"emb_features {self.emb_features} is not divisible by num_heads {self.num_heads}"
            )
        if self.num_heads % self.kv_heads:
            raise InputRefused(
                f"num_heads {self.num_heads} is not divisible by num_kv_heads {self.kv_heads}"
            )
        for field, value, known in (
            ("norm", self.norm, tuple(NORMS)),
            ("mlp", self.mlp, ("gated", "plain")),
            ("positions", self.positions, ("rotary", "learned")),
            ("norm_places", self.norm_places, tuple(NORM_PLACES)),
            ("head_norm", self.head_norm, ("", "head", "width")),
        ):
            if value not in known:
                raise InputRefused(f"{field} is {value!a:.200}; expected one of {', '.join(known)}")
        for field, value in (("windowed", self.windowed), ("unturned", self.unturned)):
            if value and len(value) != self.num_layers:
                raise InputRefused(
                    f"{field} names {len(value)} layers; the model has {self.num_layers}"
                )


def _norm(kind: str, axis: str) -> dict:
    return {"scale": (axis,), **({"bias": (axis,)} if kind == "layer" else {})}


def products(hidden: jax.Array, table: jax.Array) -> jax.Array:
    """Return float32 [N, V] of `hidden` [N, D] against the head's rows [V, D]."""
    return jax.lax.dot_general(
        hidden,
        table.astype(hidden.dtype),
        (((1,), (1,)), ((), ())),
        preferred_element_type=jnp.float32,
    )


def scaled_embedding(x: jax.Array, scale: float) -> jax.Array:
    """Return `x` times `scale`, which is first rounded to the dtype of `x`, as in transformers."""
    return x if scale == 1.0 else x * jnp.asarray(scale, x.dtype)


def _linear(inputs: tuple[str, ...], outputs: tuple[str, ...], bias: bool) -> dict:
    return {"kernel": (*inputs, *outputs), **({"bias": outputs} if bias else {})}


def _each(tree: dict, change: Callable[[tuple[str, ...]], Any]) -> dict:
    """Return a nested dict of axes with each leaf changed."""
    return {
        name: _each(value, change) if isinstance(value, dict) else change(value)
        for name, value in tree.items()
    }


def token_positions(
    shape: tuple[int, ...], mask: jax.Array | None, segments: jax.Array | None
) -> jax.Array:
    """Return int32 [B, L]: each real token's index among the real tokens of its document.

    Padding takes the position of the token before it, or 0, as transformers' generate does.
    """
    if segments is not None:
        index = jnp.arange(shape[1], dtype=jnp.int32)[None]
        previous = jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
        starts = jnp.where(segments != previous, index, 0)
        return index - jax.lax.cummax(starts, axis=1)
    if mask is None:
        return jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32)[None], shape)
    return jnp.maximum(jnp.cumsum((mask != 0).astype(jnp.int32), axis=1) - 1, 0)


def example_ids(vocab_size: int, length: int) -> np.ndarray:
    """Return int64 [1, `length`], ids spread over the vocabulary."""
    return (np.arange(max(1, length))[None] * 7919 + 1) % vocab_size
