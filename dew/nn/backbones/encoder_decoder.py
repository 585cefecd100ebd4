"""The transformer of an encoder and a decoder: reads one text and writes another."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.errors import InputRefused
from dew.nn.attention import KVCache
from dew.nn.backbones.causal_transformer import Table, example_ids, scaled_embedding
from dew.nn.backbones.cross_block import CrossBlock, Kept, Reading, cross_axes
from dew.nn.backbones.encoder_block import (
    EncoderBlock,
    block_axes,
    block_sizes,
    each_leaf,
    encoder_stack,
    norm_axes,
)
from dew.nn.block import BlockSpec
from dew.nn.distances import distance_buckets
from dew.nn.dropout import NO_DROPOUT, Dropout, dropped
from dew.nn.norms import NORMS

EXAMPLE = 8


class EncoderDecoderBase(nn.Module):
    """The two stacks of layers, whatever the encoder reads; the decoder reads ids [B, L].

    Args:
        vocab_size: V, of both sides.
        emb_features: D, width of both residual streams.
        num_layers, decoder_layers: depths.
        num_heads, decoder_heads: heads of each side.
        head_features: K, width of a head; None means D / heads.
        mlp_features, decoder_mlp_features: inner widths of the MLPs.
        max_seq_len: rows of learned or fixed positions; what a text may be long.
        norm: "rms" or "layer"; `norm_epsilon` is added to the variance.
        norm_places: "before" each branch or on the "residual" stream behind it.
        final_norm: whether each side's last output is normed.
        embed_norm: whether the embedded tokens are normed.
        mlp: "gated" or "plain"; `activation` is a Hugging Face activation name.
        positions: "relative" (a bias by distance), "learned" or "sinusoidal".
        position_offset: rows of the learned table before that of position 0.
        buckets, farthest: of the distances, see `dew.nn.distances`.
        embed_scale: multiplies the embedded tokens.
        score_scale: multiplies the attention's scores; None for 1 / √K.
        logit_scale: multiplies the decoder's output.
        tied_head: the head's table is the embedding's.
        head_bias: whether a fixed bias is added to the logits.
        bias: whether the linear maps carry one; `key_bias` says it of the keys' maps.
        dtype: what activations are computed in; `param_dtype` is what parameters are stored in.
        attention_impl: "auto", "xla" or "cudnn".
        remat: recompute each layer in the backward pass instead of keeping its activations.
        adapter_scale: factor of the low-rank path where the `lora` collection is given.
        dropout: what is zeroed while the model learns, where a `dropout` key is given.

    Source: Vaswani et al. 2017, arXiv:1706.03762; Raffel et al. 2019, arXiv:1910.10683; Lewis et
    al. 2019, arXiv:1910.13461.
    """

    counts_real_tokens: ClassVar[bool] = False

    vocab_size: int
    emb_features: int
    num_layers: int
    decoder_layers: int
    num_heads: int
    decoder_heads: int
    mlp_features: int
    decoder_mlp_features: int
    max_seq_len: int
    head_features: int | None = None
    norm: str = "layer"
    norm_epsilon: float = 1e-5
    norm_places: str = "residual"
    final_norm: bool = False
    embed_norm: bool = False
    mlp: str = "plain"
    activation: str = "gelu"
    positions: str = "learned"
    position_offset: int = 0
    buckets: int = 32
    farthest: int = 128
    embed_scale: float = 1.0
    score_scale: float | None = None
    logit_scale: float = 1.0
    tied_head: bool = True
    head_bias: bool = False
    bias: bool = True
    key_bias: bool = True
    dtype: str = "float32"
    param_dtype: str = "float32"
    attention_impl: str = "auto"
    remat: bool = False
    adapter_scale: float = 1.0
    dropout: Dropout = NO_DROPOUT

    def setup(self) -> None:
        """Declare the tables, both stacks of layers and the norms."""
        self._check()
        self.embed = Table(self.vocab_size, self.emb_features, self.param_dtype)
        for side, layers, block, shared in (
            ("encoder", self.num_layers, EncoderBlock, 2),
            ("decoder", self.decoder_layers, CrossBlock, 1),
        ):
            spec = self.spec(side)
            own = 1 if side == "decoder" else 0
            stack = self._stack(block, spec, layers, shared, own)
            setattr(self, f"{side}_blocks", stack)
            if self.positions == "learned":
                table = Table(self.position_rows(side), self.emb_features, self.param_dtype)
                setattr(self, f"{side}_position_embed", table)
            if self.positions == "relative":
                setattr(
                    self, f"{side}_distance", Table(self.buckets, spec.num_heads, self.param_dtype)
                )
            if self.embed_norm:
                setattr(self, f"{side}_embed_norm", self._norm())
            if self.final_norm:
                setattr(self, f"{side}_final_norm", self._norm())
        if self.has_own_table:
            self.output = Table(self.vocab_size, self.emb_features, self.param_dtype)
        if self.head_bias:
            shape = (1, self.vocab_size)
            self.logit_bias = self.param(
                "head_bias", nn.initializers.zeros, shape, self.param_dtype
            )

    def _stack(self, block: Any, spec: BlockSpec, layers: int, shared: int, own: int) -> Any:
        if not own:
            return encoder_stack(block, (spec,), layers, shared=shared, remat=self.remat)
        return nn.scan(
            nn.remat(block, prevent_cse=False) if self.remat else block,
            variable_axes={"params": 0, "lora": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(nn.broadcast, 0, nn.broadcast),  # pyright: ignore[reportArgumentType]
            length=layers,
        )(spec)

    def _norm(self) -> Any:
        return NORMS[self.norm](self.norm_epsilon, self.param_dtype)

    def spec(self, side: str) -> BlockSpec:
        """Return the sizes of one layer of the "encoder" or the "decoder"."""
        heads = self.num_heads if side == "encoder" else self.decoder_heads
        mlp = self.mlp_features if side == "encoder" else self.decoder_mlp_features
        return BlockSpec(
            emb_features=self.emb_features,
            num_heads=heads,
            num_kv_heads=heads,
            head_features=self.head_features or self.emb_features // heads,
            mlp_features=mlp,
            norm=self.norm,
            norm_epsilon=self.norm_epsilon,
            mlp=self.mlp,
            activation=self.activation,
            qkv_bias=self.bias,
            key_bias=self.key_bias,
            out_bias=self.bias,
            mlp_bias=self.bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            attention_impl=self.attention_impl,
            adapter_scale=self.adapter_scale,
            norm_places=self.norm_places,
            score_scale=self.score_scale,
            dropout=self.dropout,
        )

    @property
    def has_own_table(self) -> bool:
        """Whether the logits come of a table that is not the embedding's."""
        return not self.tied_head

    @property
    def position_limit(self) -> int | None:
        """How many tokens a text may have; None where only distances count."""
        return None if self.positions == "relative" else self.max_seq_len

    def position_rows(self, side: str) -> int:
        """Return the rows of the learned positions of the "encoder" or the "decoder"."""
        del side  # the same for both, where both read texts
        return self.max_seq_len + self.position_offset

    def encoded(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Return the encoder's states [B, P, D] of what it reads, embedded and placed [B, P, D]."""
        places = jnp.arange(x.shape[1])
        seen = jnp.ones((1, 1, len(places), len(places)), bool)
        if mask is not None:
            seen = seen & (mask != 0)[:, None, None, :]
        x, _ = self.encoder_blocks(x, seen, self._bias("encoder", places, places))
        return self._finished("encoder", x)

    def decoded(
        self,
        tokens: jax.Array,
        tokens_mask: jax.Array | None,
        memory: jax.Array,
        mask: jax.Array | None,
    ) -> jax.Array:
        """Return the decoder's states [B, L, D] of whole texts.

        Args:
            tokens: int32 [B, L].
            tokens_mask: [B, L], nonzero where a token is real, or None.
            memory: as for `decode`.
            mask: as for `decode`.
        """
        length = tokens.shape[1]
        seen = jnp.tril(jnp.ones((length, length), bool))[None, None]
        if tokens_mask is not None:
            seen = seen & (tokens_mask != 0)[:, None, None, :]
        return self.decode(tokens, seen, memory, mask, None, 0)[0]

    def decode(
        self,
        tokens: jax.Array,
        seen: jax.Array,
        memory: jax.Array,
        mask: jax.Array | None,
        kept: Kept | None,
        slot: jax.Array | int,
    ) -> tuple[jax.Array, Kept | None]:
        """Return the decoder's states [B, L, D], and what its layers keep.

        Args:
            tokens: int32 [B, L], at the slots from `slot` on.
            seen: bool [B or 1, 1, L, S], the slots each may look at; S = L where nothing is kept.
            memory: [B, P, D], the encoder's states; not read where `kept` holds what was read.
            mask: [B, P], nonzero where a source's token is real, or None.
            kept: each layer's cache, stacked, or None.
            slot: the slot of the first token.
        """
        places = slot + jnp.arange(tokens.shape[1])
        x = self._embedded("decoder", tokens, places)
        shape = (memory.shape[0], memory.shape[1])
        real = jnp.ones(shape, bool) if mask is None else mask != 0
        bias = self._bias("decoder", places, jnp.arange(seen.shape[-1]))
        reading = Reading(seen, bias, memory, real[:, None, None, :])
        x, kept = self.decoder_blocks(x, reading, kept, slot)
        return self._finished("decoder", x), kept

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Return float32 logits [..., V] of the decoder's states [..., D]."""
        if self.logit_scale != 1.0:
            hidden = hidden * jnp.asarray(self.logit_scale, hidden.dtype)
        table = (self.output() if self.has_own_table else self.embed()).astype(self.dtype)
        logits = jnp.einsum("...d,vd->...v", hidden, table, preferred_element_type=jnp.float32)
        return logits + self.logit_bias[0] if self.head_bias else logits

    def empty(self, rows: int, slots: int) -> Kept:
        """Return the cache of all layers for `rows` texts of up to `slots` tokens."""
        spec = self.spec("decoder")
        shape = (self.decoder_layers, rows, slots, spec.num_heads, spec.head_features)
        return Kept(KVCache(*(jnp.zeros(shape, self.dtype) for _ in range(2))), None)

    def _embedded(self, side: str, tokens: jax.Array, places: jax.Array) -> jax.Array:
        x = jnp.take(self.embed(), tokens, axis=0, mode="clip").astype(self.dtype)
        x = scaled_embedding(x, self.embed_scale)
        if self.positions == "learned":
            table = getattr(self, f"{side}_position_embed")()
            x = x + jnp.take(table, places + self.position_offset, axis=0, mode="clip").astype(
                x.dtype
            )
        if self.positions == "sinusoidal":
            table = jnp.asarray(sinusoids(self.max_seq_len, self.emb_features), x.dtype)
            x = x + jnp.take(table, places, axis=0, mode="clip")
        x = getattr(self, f"{side}_embed_norm")(x) if self.embed_norm else x
        return dropped(self, x, self.dropout.embedding)

    def _finished(self, side: str, x: jax.Array) -> jax.Array:
        x = getattr(self, f"{side}_final_norm")(x) if self.final_norm else x
        return dropped(self, x, self.dropout.final)

    def _bias(self, side: str, query: jax.Array, key: jax.Array) -> jax.Array | None:
        """Return [1, H, L, S], added to the scores by distance; None where positions are others."""
        if self.positions != "relative":
            return None
        places = distance_buckets(
            query, key, both=side == "encoder", buckets=self.buckets, farthest=self.farthest
        )
        rows = jnp.take(getattr(self, f"{side}_distance")(), places, axis=0)
        return rows.transpose(2, 0, 1)[None].astype(self.dtype)

    def parameter_shapes(self) -> dict:
        """Return the shapes of `init`'s parameters, without tracing it."""
        self._check()
        axes = self.parameter_axes()
        shapes = {}
        for name, tree in axes.items():
            side = "decoder" if name.startswith("decoder") else "encoder"
            sizes = self.axis_sizes(side)
            shapes[name] = each_leaf(
                {"it": tree},
                lambda names, sizes=sizes: jax.ShapeDtypeStruct(
                    tuple(sizes[axis] for axis in names), self.param_dtype
                ),
            )["it"]
        return shapes

    def axis_sizes(self, side: str) -> dict[str, int]:
        """Return the length of each axis of a parameter of the "encoder" or the "decoder"."""
        layers = self.decoder_layers if side == "decoder" else self.num_layers
        return {
            **block_sizes(self.spec(side), layers),
            "vocab": self.vocab_size,
            "table_features": self.emb_features,
            "positions": self.position_rows(side),
            "buckets": self.buckets,
            "one": 1,
        }

    def parameter_axes(self) -> dict:
        """Return the name of each axis of each parameter: what a layout's rules speak of."""
        axes: dict[str, Any] = {"embed": {"table": ("vocab", "table_features")}}
        for side, layer in (
            ("encoder", block_axes(self.spec("encoder"))),
            ("decoder", cross_axes(self.spec("decoder"))),
        ):
            axes[f"{side}_blocks"] = each_leaf(layer, lambda names: ("layers", *names))
            if self.positions == "learned":
                axes[f"{side}_position_embed"] = {"table": ("positions", "table_features")}
            if self.positions == "relative":
                axes[f"{side}_distance"] = {"table": ("buckets", "heads")}
            if self.embed_norm:
                axes[f"{side}_embed_norm"] = norm_axes(self.norm)
            if self.final_norm:
                axes[f"{side}_final_norm"] = norm_axes(self.norm)
        if self.has_own_table:
            axes["output"] = {"table": ("vocab", "table_features")}
        if self.head_bias:
            axes["head_bias"] = ("one", "vocab")
        return axes

    def _check(self) -> None:
        for heads in (self.num_heads, self.decoder_heads):
            if self.head_features is None and self.emb_features % heads:
                raise InputRefused(
                    f"emb_features {self.emb_features} is not divisible by {heads} heads"
                )
        if self.positions not in ("relative", "learned", "sinusoidal"):
            raise InputRefused(
                f"positions is {self.positions!a:.200}; expected relative, learned or sinusoidal"
            )


class EncoderDecoder(EncoderDecoderBase):
    """Maps a source's ids [B, P] and a target's [B, L] to next-token logits [B, L, V].

    The fields are those of `EncoderDecoderBase`.
    """

    input_names: ClassVar[tuple[str, ...]] = (
        "input_ids",
        "attention_mask",
        "decoder_input_ids",
        "decoder_attention_mask",
    )
    required_inputs: ClassVar[tuple[str, ...]] = ("input_ids", "decoder_input_ids")
    tasks: ClassVar[tuple[str, ...]] = ("text2text-generation",)

    def outputs(
        self,
        input_ids: jax.Array,
        decoder_input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        decoder_attention_mask: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Return `logits` [B, L, V] and `encoder_last_hidden_state` [B, P, D]."""
        memory = self.encode(input_ids, attention_mask)
        hidden = self.decoded(decoder_input_ids, decoder_attention_mask, memory, attention_mask)
        return {"logits": self.logits(hidden), "encoder_last_hidden_state": memory}

    def encode(self, tokens: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Return the encoder's states [B, P, D] of a source's ids [B, P]."""
        return self.encoded(self._embedded("encoder", tokens, jnp.arange(tokens.shape[1])), mask)

    def example_inputs(self) -> dict[str, np.ndarray]:
        """Return inputs for a short run that says whether two models are the same."""
        ids = example_ids(self.vocab_size, min(EXAMPLE, self.max_seq_len // 2))
        return {"input_ids": ids, "decoder_input_ids": ids[:, ::-1]}


def sinusoids(rows: int, features: int) -> np.ndarray:
    """Return float32 [rows, features]: a position's sines, then its cosines.

    Source: Vaswani et al. 2017, arXiv:1706.03762, the two halves apart as in Marian.
    """
    rates = 10000.0 ** (-2.0 * (np.arange(0, features, 2) // 2) / features)
    turns = np.arange(rows)[:, None] * rates[None, :]
    half = features - features // 2
    table = np.concatenate([np.sin(turns)[:, :half], np.cos(turns)[:, : features // 2]], axis=1)
    return table.astype(np.float32)
