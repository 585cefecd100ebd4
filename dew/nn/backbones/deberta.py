"""DeBERTa's encoder: scores of contents against contents, and of contents against distances."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.nn.activations import activation
from dew.nn.backbones.causal_transformer import Table
from dew.nn.backbones.encoder_base import EncoderBase
from dew.nn.backbones.encoder_block import (
    block_axes,
    each_leaf,
    encoder_stack,
    heads_map,
    linear_axes,
    look,
    norm_axes,
    norms_of,
    out_map,
    scaled_norm,
)
from dew.nn.block import MLP, BlockSpec, joined
from dew.nn.constraint import constrained
from dew.nn.dense import INIT_DEVIATION, Dense
from dew.nn.norms import LayerNorm

ANY_KINDS = 2**31 - 1


class Distances(NamedTuple):
    """How the scores depend on distances.

    Attributes:
        keys: whether contents look at distances as keys ("c2p").
        queries: whether distances look at contents as queries ("p2c").
        shared: whether they are mapped as contents are, or by maps of their own.
        span: S, how far the table of 2 S rows reaches to each side.
        buckets: whether distances beyond S / 2 share rows, in spans that grow.
        farthest: the distance at which the buckets end, in tokens.
        normed: whether the table's rows are normed.
    """

    keys: bool
    queries: bool
    shared: bool
    span: int
    buckets: bool
    farthest: int
    normed: bool


class Convolved(NamedTuple):
    """What the first layer's output is joined with: a convolution of the embeddings.

    Attributes:
        added: [B, L, D].
        real: [B or 1, L, 1], 1 where a token is real and 0 at padding.
        scale, bias: [D], of the norm behind the sum.
    """

    added: jax.Array
    real: jax.Array
    scale: jax.Array
    bias: jax.Array


class DebertaBlock(nn.Module):
    """A layer of DeBERTa; `looks` is how many kinds of scores the scores' scale accounts for."""

    spec: BlockSpec
    distances: Distances | None
    looks: int

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array,
        rows: jax.Array | None,
        convolved: Convolved | None,
        first: jax.Array,
    ) -> tuple[jax.Array, None]:
        """Run the layer.

        Args:
            x: [B, L, D].
            mask: bool [B or 1, 1, L, L], True where a query may look.
            rows: the distances' vectors [2 L - 1, D], as `distance_rows` orders them; or None.
            convolved: what the first layer's output is joined with, or None.
            first: bool, whether this is the first layer.
        """
        spec = self.spec
        attention = DisentangledAttention(spec, self.distances, self.looks, name="attention")
        mlp = MLP(spec, name="mlp")
        x = joined(spec, norms_of(spec), lambda x: attention(x, mask, rows), mlp, x)
        if convolved is None:
            return x, None
        added, real, scale, bias = convolved
        both = scaled_norm(x + added, scale, bias, spec.norm_epsilon) * real
        return jnp.where(first, both, x), None


class DisentangledAttention(nn.Module):
    """Self-attention to both sides whose scores also tell how far apart two tokens are.

    Source: He et al. 2020, arXiv:2006.03654; buckets and shared maps of arXiv:2111.09543.
    """

    spec: BlockSpec
    distances: Distances | None
    looks: int

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, rows: jax.Array | None) -> jax.Array:
        """Return [B, L, D]; arguments as for `DebertaBlock`."""
        spec = self.spec
        maps = {name: heads_map(spec, name) for name in ("query", "key", "value")}
        query, key, value = (maps[name](x) for name in maps)
        scale = 1.0 / math.sqrt(spec.head_features * self.looks)
        bias = None
        if self.distances is not None and rows is not None:
            bias = self._bias(maps, query, key, rows) * jnp.asarray(scale, query.dtype)
        return out_map(spec)(look(query, key, value, mask, bias, spec.attention_impl, scale))

    def _bias(
        self, maps: dict[str, Dense], query: jax.Array, key: jax.Array, rows: jax.Array
    ) -> jax.Array:
        """Return [B, H, L, L], the sum of both looks at distances, not yet scaled."""
        found = self.distances
        assert found is not None
        parts = []
        if found.keys:
            own = maps["key"] if found.shared else heads_map(self.spec, "distance_key")
            scores = jnp.einsum("blhk,jhk->bhlj", query, own(rows))
            parts.append(skewed(scores))
        if found.queries:
            own = maps["query"] if found.shared else heads_map(self.spec, "distance_query")
            scores = jnp.einsum("blhk,jhk->bhlj", key, own(rows[::-1]))
            parts.append(jnp.swapaxes(skewed(scores), -1, -2))
        return sum(parts[1:], parts[0])


def skewed(scores: jax.Array) -> jax.Array:
    """Return [..., L, L] whose place (i, j) holds (i, L - 1 - i + j) of `scores` [..., L, 2 L - 1].

    By padding and reshaping alone: a gather's backward pass would add up element by element.
    """
    *batch, length, width = scores.shape
    padded = jnp.pad(scores, [*((0, 0) for _ in batch), (0, 0), (0, 1)])
    flat = padded.reshape(*batch, length * (width + 1))
    flat = flat[..., length - 1 : length - 1 + length * width]
    return flat.reshape(*batch, length, width)[..., :length]


def distance_rows(length: int, distances: Distances) -> np.ndarray:
    """Return int32 [2 L - 1], the table's row of each distance, the farthest earlier query first.

    The distance is query minus key, from L - 1 down to 1 - L. The float32 arithmetic is
    transformers', whose rounding decides at the buckets' ends.
    """
    away = np.arange(length - 1, -length, -1)
    span = distances.span
    if distances.buckets:
        middle = span // 2
        far = np.where(np.abs(away) < middle, middle - 1, np.abs(away))
        share = np.log(far.astype(np.float32) / np.float32(middle))
        share = share / np.log(np.float32((distances.farthest - 1) / middle))
        grown = np.ceil(share * np.float32(middle - 1)) + np.float32(middle)
        away = np.where(far <= middle, away, grown * np.sign(away))
    return np.clip(away + span, 0, 2 * span - 1).astype(np.int32)


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
        return self.embed_norm(x)

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


class Convolution(nn.Module):
    """A convolution over `window` tokens, an odd number, that stands beside the first layer."""

    spec: BlockSpec
    window: int
    act: str

    @nn.compact
    def __call__(self, x: jax.Array, real: jax.Array) -> Convolved:
        """Convolve `x` [B, L, D]; `real` [B or 1, L] is False at padding, which gives 0."""
        spec, shape = self.spec, (self.spec.emb_features,)
        init, zeros, ones = nn.initializers.normal(INIT_DEVIATION), *_CONSTANTS
        kernel = self.param("kernel", init, (self.window, *shape, *shape), spec.param_dtype)
        bias = self.param("bias", zeros, shape, spec.param_dtype)
        scale = self.param("norm_scale", ones, shape, spec.param_dtype)
        shift = self.param("norm_bias", zeros, shape, spec.param_dtype)
        side, length = self.window // 2, x.shape[1]
        padded = jnp.pad(x, ((0, 0), (side, side), (0, 0)))
        parts = [
            padded[:, place : place + length] @ kernel[place].astype(spec.dtype)
            for place in range(self.window)
        ]
        out = jnp.where(real[..., None], sum(parts[1:], parts[0]) + bias.astype(spec.dtype), 0)
        return Convolved(activation(self.act)(out), real[..., None].astype(x.dtype), scale, shift)


_CONSTANTS = (nn.initializers.zeros, nn.initializers.ones)
