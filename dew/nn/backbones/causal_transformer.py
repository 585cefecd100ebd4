"""The decoder-only transformer: rotary or learned positions, grouped heads, tied or own head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.errors import InputRefused
from dew.nn.attention import causal_mask
from dew.nn.block import Block, BlockSpec
from dew.nn.constraint import constrained
from dew.nn.dense import INIT_DEVIATION
from dew.nn.norms import NORMS
from dew.nn.rotary import Rope, angles


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
        norm: "rms" or "layer"; `norm_epsilon` is added to the variance.
        mlp: "gated" or "plain"; `activation` is a Hugging Face activation name.
        positions: "rotary" (turned as `rope` says) or "learned".
        tied_head: the head's table is the embedding's.
        qkv_bias, out_bias, mlp_bias: which linear maps carry a bias.
        dtype: what activations are computed in; `param_dtype` is what parameters are stored in.
        attention_impl: "auto", "xla" or "cudnn".
        remat: recompute each layer in the backward pass instead of keeping its activations.
        adapter_scale: factor of the low-rank path where the `lora` collection is given.
    """

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

    def setup(self) -> None:
        """Declare the tables, the scanned layers and the last norm."""
        self._check()
        self.embed = Table(self.vocab_size, self.emb_features, self.param_dtype)
        if self.positions == "learned":
            self.position_embed = Table(self.max_seq_len, self.emb_features, self.param_dtype)
        block = nn.remat(Block, prevent_cse=False) if self.remat else Block
        self.layers = nn.scan(
            block,
            variable_axes={"params": 0, "lora": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,  # pyright: ignore[reportArgumentType]
            length=self.num_layers,
        )(self.block_spec)
        self.final_norm = NORMS[self.norm](self.norm_epsilon, self.param_dtype)
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
        return jnp.einsum(
            "bld,vd->blv",
            hidden,
            self.head_table().astype(self.dtype),
            preferred_element_type=jnp.float32,
        )

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
        x, _ = self.layers(x, self.turn(positions), causal_mask(mask, segments))
        return self.final_norm(x)

    def embedded(self, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        """Return [B, L, D]: token rows, plus position rows where positions are learned."""
        x = jnp.take(self.embed(), tokens, axis=0, mode="clip").astype(self.dtype)
        if self.positions == "learned":
            rows = jnp.take(self.position_embed(), positions, axis=0, mode="clip")
            x = x + rows.astype(self.dtype)
        return constrained(x, "batch", "length", None)

    def turn(self, positions: jax.Array) -> tuple[jax.Array, jax.Array] | None:
        """Return rotary cos and sin of `positions` [B, L], or None where they are learned."""
        if self.positions != "rotary":
            return None
        return angles(self.rope, positions, features=self.head_width, max_seq_len=self.max_seq_len)

    def head_table(self) -> jax.Array:
        """Return the head's rows [V, D]: the embedding's where the head is tied."""
        return self.embed() if self.tied_head else self.head()

    def hidden_and_table(self, tokens: jax.Array, **inputs: jax.Array | None):
        """Return `hidden` and `head_table`, for losses that never build all logits."""
        return self.hidden(tokens, **inputs), self.head_table()

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
            "positions": self.max_seq_len,
            "layers": self.num_layers,
            "norm": self.emb_features,
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
        inner = ("gate", "up") if self.mlp == "gated" else ("up",)
        mlp = {name: _linear(("embed",), ("mlp",), self.mlp_bias) for name in inner}
        mlp["down"] = _linear(("mlp",), ("embed",), self.mlp_bias)
        norm = {"scale": ("norm",), **({"bias": ("norm",)} if self.norm == "layer" else {})}
        layer = {"attention_norm": norm, "attention": attention, "mlp_norm": norm, "mlp": mlp}
        axes = {
            "embed": {"table": ("vocab", "table_features")},
            "layers": _each(layer, lambda names: ("layers", *names)),
            "final_norm": norm,
        }
        if self.positions == "learned":
            axes["position_embed"] = {"table": ("positions", "table_features")}
        if not self.tied_head:
            axes["head"] = {"table": ("vocab", "table_features")}
        return axes

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
        ):
            if value not in known:
                raise InputRefused(f"{field} is {value!a:.200}; expected one of {', '.join(known)}")


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
