"""One layer of DeBERTa: scores of contents against contents, and against distances."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.nn.activations import activation
from dew.nn.attention import weights_shape
from dew.nn.backbones.encoder_block import heads_map, look, norms_of, out_map, scaled_norm
from dew.nn.block import MLP, BlockSpec, joined
from dew.nn.dense import INIT_DEVIATION, Dense
from dew.nn.dropout import drawn, dropped


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
            rows = dropped(self, rows, spec.dropout.embedding)
            bias = self._bias(maps, query, key, rows) * jnp.asarray(scale, query.dtype)
        kept = drawn(self, weights_shape(query, key), spec.dropout.attention)
        mixed = look(query, key, value, mask, bias, spec.attention_impl, scale, kept)
        return dropped(self, out_map(spec)(mixed), spec.dropout.attention_out)

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
        out = dropped(self, out, spec.dropout.embedding)
        return Convolved(activation(self.act)(out), real[..., None].astype(x.dtype), scale, shift)


_CONSTANTS = (nn.initializers.zeros, nn.initializers.ones)
