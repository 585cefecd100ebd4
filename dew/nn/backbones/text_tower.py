"""The text tower: the halves of CLIP and SigLIP that read captions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.nn.backbones.causal_transformer import Table, example_ids
from dew.nn.backbones.encoder_block import (
    EncoderBlock,
    block_axes,
    block_sizes,
    each_leaf,
    encoder_stack,
    linear_axes,
    norm_axes,
)
from dew.nn.block import BlockSpec
from dew.nn.constraint import constrained
from dew.nn.dense import Dense
from dew.nn.norms import LayerNorm
from dew.nn.stack import full_mask

EXAMPLE = 8


@dataclass(frozen=True)
class TextSpec:
    """The sizes and choices of a text tower.

    Args:
        vocab_size: V, rows of the embedding.
        emb_features: D, width of the residual stream.
        num_layers, num_heads, mlp_features: depth, heads and inner width of the MLP.
        max_seq_len: the longest text in tokens.
        norm_epsilon: added to the variance of the layer norms.
        activation: a Hugging Face activation name.
        causal: whether a token sees only itself and those before it.
        pooled: whose state is the text's: the first token of id `end_token` ("end"), the token of
            the largest id ("largest") or the last one, padding or not ("last").
        end_token: an id.
        pooled_features: width of a map of that state; 0 for none.
    """

    vocab_size: int
    emb_features: int
    num_layers: int
    num_heads: int
    mlp_features: int
    max_seq_len: int
    norm_epsilon: float = 1e-5
    activation: str = "quick_gelu"
    causal: bool = True
    pooled: str = "end"
    end_token: int = 49407
    pooled_features: int = 0


CLIP_BASE = TextSpec(49408, 512, 12, 8, 2048, 77)
"""The sizes of the text tower of CLIP ViT-B/32."""


class TextTower(nn.Module):
    """Maps token ids [N, L] to their states [N, L, D] and to one vector for each text.

    The layers' parameters are stacked along a first axis and scanned.

    Args:
        spec: the sizes and choices.
        head: "projection" gives `text_embeds` in the place of `pooler_output`; "" does not.
        projected: width of `text_embeds`.
        dtype: what activations are computed in; `param_dtype` is what parameters are stored in.
        attention_impl: "auto", "xla" or "cudnn".
        remat: recompute each layer in the backward pass instead of keeping its activations.

    Source: Radford et al. 2021, arXiv:2103.00020; Zhai et al. 2023, arXiv:2303.15343.
    """

    counts_real_tokens: ClassVar[bool] = False
    input_names: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "position_ids")
    tasks: ClassVar[tuple[str, ...]] = ("feature-extraction",)

    spec: TextSpec = CLIP_BASE
    head: str = ""
    projected: int = 0
    dtype: str = "float32"
    param_dtype: str = "float32"
    attention_impl: str = "auto"
    remat: bool = False

    @property
    def vocab_size(self) -> int:
        """Ids lie below it."""
        return self.spec.vocab_size

    @property
    def position_limit(self) -> int | None:
        """How many tokens a text may have."""
        return self.spec.max_seq_len

    @property
    def num_layers(self) -> int:
        """How many layers are stacked."""
        return self.spec.num_layers

    @property
    def block_spec(self) -> BlockSpec:
        """The sizes of one layer."""
        spec = self.spec
        return BlockSpec(
            emb_features=spec.emb_features,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_heads,
            head_features=spec.emb_features // spec.num_heads,
            mlp_features=spec.mlp_features,
            norm="layer",
            norm_epsilon=spec.norm_epsilon,
            mlp="plain",
            activation=spec.activation,
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            attention_impl=self.attention_impl,
            adapter_scale=1.0,
        )

    def setup(self) -> None:
        """Declare the tables, the scanned layers and what stands on them."""
        spec = self.spec
        self.embed = Table(spec.vocab_size, spec.emb_features, self.param_dtype)
        self.position_embed = Table(spec.max_seq_len, spec.emb_features, self.param_dtype)
        self.layers = encoder_stack(
            EncoderBlock, (self.block_spec,), spec.num_layers, shared=2, remat=self.remat
        )
        self.final_norm = LayerNorm(spec.norm_epsilon, self.param_dtype)
        if spec.pooled_features:
            self.pool = self._dense(spec.pooled_features, bias=True)
        if self.head == "projection":
            self.projection = self._dense(self.projected, bias=False)

    def __call__(
        self,
        tokens: jax.Array,
        *,
        mask: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Return the normed states of the last layer.

        Args:
            tokens: int32 [N, L], ids in [0, V).
            mask: [N, L], nonzero where a token is real; all are where None.
            positions: int32 [N, L], rows of the table of positions; counted where None.

        Returns:
            [N, L, D].
        """
        length = tokens.shape[1]
        places = jnp.arange(length)[None] if positions is None else positions
        x = self._rows(self.embed(), tokens) + self._rows(self.position_embed(), places)
        x = constrained(x, "batch", "length", None)
        seen = full_mask(length, mask, None)
        if self.spec.causal:
            seen = seen & jnp.tril(jnp.ones((length, length), bool))
        x, _ = self.layers(x, seen, None)
        return self.final_norm(x)

    def outputs(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        position_ids: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names.

        Args:
            input_ids: int32 [N, L].
            attention_mask: [N, L], nonzero where a token is real; all are where None.
            position_ids: int32 [N, L]; counted where None.

        Returns:
            `last_hidden_state` [N, L, D], and `pooler_output` or `text_embeds` [N, E].
        """
        hidden = self(input_ids, mask=attention_mask, positions=position_ids)
        pooled = hidden[jnp.arange(len(hidden)), self._ends(input_ids)]
        if self.spec.pooled_features:
            pooled = self.pool(pooled)
        if self.head == "projection":
            return {"last_hidden_state": hidden, "text_embeds": self.projection(pooled)}
        return {"last_hidden_state": hidden, "pooler_output": pooled}

    def parameter_axes(self) -> dict[str, Any]:
        """Return the name of each axis of each parameter: what a layout's rules speak of."""
        axes: dict[str, Any] = {
            "embed": {"table": ("vocab", "embed")},
            "position_embed": {"table": ("positions", "embed")},
            "layers": each_leaf(block_axes(self.block_spec), lambda names: ("layers", *names)),
            "final_norm": norm_axes("layer"),
        }
        if self.spec.pooled_features:
            axes["pool"] = linear_axes(("embed",), ("pooled",), True)
        if self.head == "projection":
            last = "pooled" if self.spec.pooled_features else "embed"
            axes["projection"] = linear_axes((last,), ("projected",), False)
        return axes

    def parameter_shapes(self) -> dict[str, Any]:
        """Return the shapes of `init`'s parameters, without tracing it."""
        spec = self.spec
        sizes = {
            **block_sizes(self.block_spec, spec.num_layers),
            "vocab": spec.vocab_size,
            "positions": spec.max_seq_len,
            "pooled": spec.pooled_features,
            "projected": self.projected,
        }

        def shape(axes: tuple[str, ...]) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(tuple(sizes[axis] for axis in axes), self.param_dtype)

        return each_leaf(self.parameter_axes(), shape)

    def example_inputs(self) -> dict[str, np.ndarray]:
        """Return inputs for a short run that says whether two models are the same."""
        length = max(1, min(EXAMPLE, self.spec.max_seq_len))
        return {"input_ids": example_ids(self.spec.vocab_size, length)}

    def _ends(self, tokens: jax.Array) -> jax.Array:
        """Return int32 [N], the place of each text's pooled token."""
        if self.spec.pooled == "last":
            return jnp.full(len(tokens), tokens.shape[1] - 1)
        found = tokens == self.spec.end_token if self.spec.pooled == "end" else tokens
        return jnp.argmax(found, axis=1)

    def _rows(self, table: jax.Array, which: jax.Array) -> jax.Array:
        return jnp.take(table, which, axis=0, mode="clip").astype(self.dtype)

    def _dense(self, features: int, *, bias: bool) -> Dense:
        return Dense((features,), use_bias=bias, dtype=self.dtype, param_dtype=self.param_dtype)
