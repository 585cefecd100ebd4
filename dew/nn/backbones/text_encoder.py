"""The text encoder: BERT and its kin, whose layers are normed behind each residual sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dew.nn.backbones.causal_transformer import Table
from dew.nn.backbones.encoder_base import EncoderBase
from dew.nn.backbones.encoder_block import (
    EncoderBlock,
    block_axes,
    each_leaf,
    encoder_stack,
    linear_axes,
    norm_axes,
)
from dew.nn.constraint import constrained
from dew.nn.dense import Dense
from dew.nn.distances import distance_buckets
from dew.nn.dropout import dropped
from dew.nn.norms import LayerNorm
from dew.nn.stack import full_mask

BUCKETS, FARTHEST = 32, 128


class TextEncoder(EncoderBase):
    """BERT (Devlin et al. 2018, arXiv:1810.04805), RoBERTa, DistilBERT, MPNet and ELECTRA.

    The layers' parameters are stacked along a first axis and scanned.

    Args:
        embedding_features: E, width of the embeddings where they are mapped to D; None for D.
        segments: how many kinds of tokens `token_type_ids` tells apart; 0 for none.
        padding_id: the id whose tokens take no position: the others' count from its number on, one
            above it first. None counts all tokens from 0.
        bias_rows: rows of the table of biases that all layers add to the scores, by how far apart
            two tokens are; 0 for none. Raffel et al. 2020, arXiv:1910.10683.
    """

    embedding_features: int | None = None
    segments: int = 0
    padding_id: int | None = None
    bias_rows: int = 0

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs that the model takes, by Hugging Face's names."""
        kinds = ("token_type_ids",) if self.segments else ()
        return ("input_ids", "attention_mask", *kinds, "position_ids")

    @property
    def type_vocab_size(self) -> int:
        """How many kinds of tokens there are."""
        return self.segments

    @property
    def position_rows(self) -> int:
        """How many rows the table of positions has."""
        return self.max_seq_len + (0 if self.padding_id is None else self.padding_id + 1)

    def setup(self) -> None:
        """Declare the tables, the scanned layers and what stands on them."""
        self.check()
        width = self.embedding_features or self.emb_features
        self.embed = Table(self.vocab_size, width, self.param_dtype)
        self.position_embed = Table(self.position_rows, width, self.param_dtype)
        if self.segments:
            self.segment_embed = Table(self.segments, width, self.param_dtype)
        self.embed_norm = LayerNorm(self.norm_epsilon, self.param_dtype)
        if width != self.emb_features:
            self.embed_map = Dense(
                (self.emb_features,), use_bias=True, dtype=self.dtype, param_dtype=self.param_dtype
            )
        if self.bias_rows:
            self.distances = Table(self.bias_rows, self.num_heads, self.param_dtype)
        self.layers = encoder_stack(
            EncoderBlock, (self.block_spec,), self.num_layers, shared=2, remat=self.remat
        )
        self.pool = self.pooler_module()
        self.top = self.head_module()

    def __call__(
        self,
        tokens: jax.Array,
        *,
        mask: jax.Array | None = None,
        kinds: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Return the states of the last layer.

        Args:
            tokens: int32 [B, L], ids in [0, V).
            mask: [B, L], nonzero where a token is real; all are where None.
            kinds: int32 [B, L], which segment a token is of; the first where None.
            positions: int32 [B, L], rows of the table of positions; counted where None.

        Returns:
            [B, L, D].
        """
        x = self.embedded(tokens, kinds, positions)
        bias = self.distance_bias(tokens.shape[1]) if self.bias_rows else None
        x, _ = self.layers(x, full_mask(tokens.shape[1], mask, None), bias)
        return x

    def outputs(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        token_type_ids: jax.Array | None = None,
        position_ids: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Return what `finished` gives: a call by Hugging Face's names."""
        hidden = self(input_ids, mask=attention_mask, kinds=token_type_ids, positions=position_ids)
        return self.finished(hidden, attention_mask, self.embed(), self.top, self.pool)

    def embedded(
        self, tokens: jax.Array, kinds: jax.Array | None, positions: jax.Array | None
    ) -> jax.Array:
        """Return the normed sum of the tokens' rows, [B, L, D]; arguments as for a call."""
        if positions is None:
            positions = counted_positions(tokens, self.padding_id)
        x = self._rows(self.embed(), tokens)
        if self.segments:
            which = jnp.zeros_like(tokens) if kinds is None else kinds
            x = x + self._rows(self.segment_embed(), which)
        x = self.embed_norm(x + self._rows(self.position_embed(), positions))
        x = dropped(self, x, self.dropout.embedding)
        if self.embedding_features not in (None, self.emb_features):
            x = self.embed_map(x)
        return constrained(x, "batch", "length", None)

    def distance_bias(self, length: int) -> jax.Array:
        """Return [1, H, L, L], what is added to the scores of each pair of places."""
        places = jnp.arange(length)
        rows = distance_buckets(places, places, both=True, buckets=BUCKETS, farthest=FARTHEST)
        return jnp.moveaxis(self.distances().astype(self.dtype)[rows], -1, 0)[None]

    def parameter_axes(self) -> dict[str, Any]:
        """Return the name of each axis of each parameter: what a layout's rules speak of."""
        axes: dict[str, Any] = {
            "embed": {"table": ("vocab", "table_features")},
            "position_embed": {"table": ("positions", "table_features")},
            "embed_norm": norm_axes("layer", "table_features"),
            "layers": each_leaf(block_axes(self.block_spec), lambda names: ("layers", *names)),
        }
        if self.segments:
            axes["segment_embed"] = {"table": ("segments", "table_features")}
        if self.embedding_features not in (None, self.emb_features):
            axes["embed_map"] = linear_axes(("table_features",), ("embed",), True)
        if self.bias_rows:
            axes["distances"] = {"table": ("distances", "heads")}
        return axes | self.finishing_axes()

    def axis_sizes(self) -> dict[str, int]:
        """Return the length of each axis of a parameter."""
        return {
            **super().axis_sizes(),
            "table_features": self.embedding_features or self.emb_features,
            "positions": self.position_rows,
            "segments": self.segments,
            "distances": self.bias_rows,
        }

    def _rows(self, table: jax.Array, which: jax.Array) -> jax.Array:
        return jnp.take(table, which, axis=0, mode="clip").astype(self.dtype)


def counted_positions(tokens: jax.Array, padding_id: int | None) -> jax.Array:
    """Return int32 positions, [B, L] or [1, L].

    Args:
        tokens: int32 [B, L].
        padding_id: as for `TextEncoder`.
    """
    if padding_id is None:
        return jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    real = (tokens != padding_id).astype(jnp.int32)
    return jnp.cumsum(real, axis=1) * real + padding_id
