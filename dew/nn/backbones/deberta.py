"""DeBERTa's encoder: embeddings, scanned layers whose scores tell distances, and heads."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from dew.nn.backbones.causal_transformer import Table
from dew.nn.backbones.deberta_block import Convolution, DebertaBlock, Distances, distance_rows
from dew.nn.backbones.encoder_base import EncoderBase
from dew.nn.backbones.encoder_block import (
    block_axes,
    each_leaf,
    encoder_stack,
    linear_axes,
    norm_axes,
)
from dew.nn.constraint import constrained
from dew.nn.dense import Dense
from dew.nn.dropout import dropped
from dew.nn.norms import LayerNorm

ANY_KINDS = 2**31 - 1


class DebertaEncoder(EncoderBase):
    """DeBERTa, versions 2 and 3.

    The layers' parameters are stacked along a first axis and scanned.

    Args:
        embedding_features: E, width of the embeddings where they are mapped to D; None for D.
        segments: how many kinds of tokens `token_type_ids` tells apart; 0 for none.
        placed: whether rows of learned positions are added to the embeddings.
        distances: how scores depend on distances; None where they do not.
        looks: how many kinds of scores the scores' scale accounts for.
        kernel: how many tokens the convolution beside the first layer covers; 0 for none.
        kernel_activation: behind it, a Hugging Face activation name.
    """

    input_names: ClassVar[tuple[str, ...]] = (
        "input_ids",
        "attention_mask",
        "token_type_ids",
        "position_ids",
    )

    embedding_features: int | None = None
    segments: int = 0
    placed: bool = False
    distances: Distances | None = None
    looks: int = 1
    kernel: int = 0
    kernel_activation: str = "tanh"

    @property
    def type_vocab_size(self) -> int:
        """How many kinds of tokens there are; without a table for them any kind will do."""
        return self.segments or ANY_KINDS

    @property
    def position_limit(self) -> int | None:
        """How many tokens a text may have; None where nothing but distances are counted."""
        return self.max_seq_len if self.placed else None

    @property
    def width(self) -> int:
        """E."""
        return self.embedding_features or self.emb_features

    @property
    def split_maps(self) -> tuple[str, ...]:
        """The maps that distances have for themselves."""
        found = self.distances
        if found is None or found.shared:
            return ()
        names = (("distance_key", found.keys), ("distance_query", found.queries))
        return tuple(name for name, there in names if there)

    def setup(self) -> None:
        """Declare the tables, the scanned layers and what stands on them."""
        self.check()
        self.embed = Table(self.vocab_size, self.width, self.param_dtype)
        if self.placed:
            self.position_embed = Table(self.max_seq_len, self.width, self.param_dtype)
        if self.segments:
            self.segment_embed = Table(self.segments, self.width, self.param_dtype)
        if self.width != self.emb_features:
            self.embed_map = Dense(
                (self.emb_features,), dtype=self.dtype, param_dtype=self.param_dtype
            )
        self.embed_norm = LayerNorm(self.norm_epsilon, self.param_dtype)
        if self.distances is not None:
            self.distance_embed = Table(
                2 * self.distances.span, self.emb_features, self.param_dtype
            )
            if self.distances.normed:
                self.distance_norm = LayerNorm(self.norm_epsilon, self.param_dtype)
        if self.kernel:
            self.convolution = Convolution(self.block_spec, self.kernel, self.kernel_activation)
        self.layers = encoder_stack(
            DebertaBlock,
            (self.block_spec, self.distances, self.looks),
            self.num_layers,
            shared=3,
            own=1,
            remat=self.remat,
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
            positions: int32 [B, L], rows of the table of positions; from 0 on where None.
                Distances always count places.

        Returns:
            [B, L, D].
        """
        length = tokens.shape[1]
        real = jnp.ones((1, length), bool) if mask is None else mask != 0
        x = self.embedded(tokens, kinds, positions) * real[..., None].astype(self.dtype)
        x = constrained(x, "batch", "length", None)
        sees = (real[:, None, :] & real[:, :, None])[:, None]
        convolved = self.convolution(x, real) if self.kernel else None
        first = jnp.arange(self.num_layers) == 0
        x, _ = self.layers(x, sees, self.distance_vectors(length), convolved, first)
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
        x = self._rows(self.embed(), tokens)
        if self.placed:
            if positions is None:
                positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
            x = x + self._rows(self.position_embed(), positions)
        if self.segments:
            which = jnp.zeros_like(tokens) if kinds is None else kinds
            x = x + self._rows(self.segment_embed(), which)
        if self.width != self.emb_features:
            x = self.embed_map(x)
        return dropped(self, self.embed_norm(x), self.dropout.embedding)

    def distance_vectors(self, length: int) -> jax.Array | None:
        """Return the vectors [2 L - 1, D] of the distances among L tokens, or None."""
        if self.distances is None:
            return None
        table = self.distance_embed().astype(self.dtype)
        if self.distances.normed:
            table = self.distance_norm(table)
        return table[jnp.asarray(distance_rows(length, self.distances))]

    def parameter_axes(self) -> dict[str, Any]:
        """Return the name of each axis of each parameter: what a layout's rules speak of."""
        layer = block_axes(self.block_spec)
        for name in self.split_maps:
            layer["attention"][name] = linear_axes(("embed",), ("heads", "head"), True)
        axes: dict[str, Any] = {
            "embed": {"table": ("vocab", "table_features")},
            "embed_norm": norm_axes("layer"),
            "layers": each_leaf(layer, lambda names: ("layers", *names)),
        }
        if self.placed:
            axes["position_embed"] = {"table": ("positions", "table_features")}
        if self.segments:
            axes["segment_embed"] = {"table": ("segments", "table_features")}
        if self.width != self.emb_features:
            axes["embed_map"] = linear_axes(("table_features",), ("embed",), False)
        if self.distances is not None:
            axes["distance_embed"] = {"table": ("distances", "norm")}
            if self.distances.normed:
                axes["distance_norm"] = norm_axes("layer")
        if self.kernel:
            axes["convolution"] = {
                "kernel": ("window", "embed", "convolved"),
                "bias": ("convolved",),
                "norm_scale": ("norm",),
                "norm_bias": ("norm",),
            }
        return axes | self.finishing_axes()

    def axis_sizes(self) -> dict[str, int]:
        """Return the length of each axis of a parameter."""
        return {
            **super().axis_sizes(),
            "table_features": self.width,
            "positions": self.max_seq_len,
            "segments": self.segments,
            "distances": 0 if self.distances is None else 2 * self.distances.span,
            "window": self.kernel,
            "convolved": self.emb_features,
        }

    def _rows(self, table: jax.Array, which: jax.Array) -> jax.Array:
        return jnp.take(table, which, axis=0, mode="clip").astype(self.dtype)
