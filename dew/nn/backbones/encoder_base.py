"""What the text encoders have in common: sizes, heads, and outputs by Hugging Face's names."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.errors import InputRefused
from dew.nn.backbones.causal_transformer import example_ids
from dew.nn.backbones.encoder_block import block_sizes, each_leaf, linear_axes
from dew.nn.block import BlockSpec
from dew.nn.dense import Dense
from dew.nn.dropout import NO_DROPOUT, Dropout
from dew.nn.heads import (
    HEAD_TASKS,
    Head,
    HeadSpec,
    SentencePooling,
    head_axes,
    head_sizes,
    sentence_embedding,
)

EXAMPLE = 8
ENDS = 2


class EncoderBase(nn.Module):
    """Maps token ids [B, L] to what the head gives, or to the tokens' states [B, L, D].

    Args:
        vocab_size: V, rows of the embedding.
        emb_features: D, width of the residual stream.
        num_layers, num_heads, mlp_features: depth, heads and inner width of the MLP.
        max_seq_len: the longest text in tokens.
        norm_epsilon: added to the variance of the norms.
        activation: a Hugging Face activation name.
        heads: the heads that the family has.
        head: the kind of the head in use, of those in `heads`; "" for none.
        pooler: without a head, whether the first token's state goes through one more map with a
            tanh, as `pooler_output`.
        tied_head: whether a masked head's table is the embedding's.
        sentence: how the texts' vectors are made, where the model is a sentence encoder.
        dtype: what activations are computed in; `param_dtype` is what parameters are stored in.
        attention_impl: "auto", "xla" or "cudnn".
        remat: recompute each layer in the backward pass instead of keeping its activations.
        adapter_scale: factor of the low-rank path where the `lora` collection is given.
        dropout: what is zeroed while the model learns, where a `dropout` key is given.
    """

    counts_real_tokens: ClassVar[bool] = False

    vocab_size: int
    emb_features: int
    num_layers: int
    num_heads: int
    mlp_features: int
    max_seq_len: int
    norm_epsilon: float = 1e-12
    activation: str = "gelu"
    heads: tuple[HeadSpec, ...] = ()
    head: str = ""
    pooler: bool = False
    tied_head: bool = True
    sentence: SentencePooling | None = None
    dtype: str = "float32"
    param_dtype: str = "float32"
    attention_impl: str = "auto"
    remat: bool = False
    adapter_scale: float = 1.0
    dropout: Dropout = NO_DROPOUT

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the pipeline's tasks that the model is fit for."""
        task = HEAD_TASKS[self.head]
        return (task,) if task else ()

    @property
    def position_limit(self) -> int | None:
        """How many tokens a text may have."""
        return self.max_seq_len

    @property
    def head_spec(self) -> HeadSpec | None:
        """The head in use, or None."""
        return next((spec for spec in self.heads if spec.kind == self.head), None)

    @property
    def has_pooler(self) -> bool:
        """Whether `pooler_output` is given."""
        return self.pooler and not self.head

    @property
    def block_spec(self) -> BlockSpec:
        """The sizes of one layer."""
        return BlockSpec(
            emb_features=self.emb_features,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_features=self.emb_features // self.num_heads,
            mlp_features=self.mlp_features,
            norm="layer",
            norm_epsilon=self.norm_epsilon,
            mlp="plain",
            activation=self.activation,
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            attention_impl=self.attention_impl,
            adapter_scale=self.adapter_scale,
            norm_places="residual",
            dropout=self.dropout,
        )

    def check(self) -> None:
        """Refuse sizes that do not fit each other, and a head that the family has not."""
        if self.emb_features % self.num_heads:
            raise InputRefused(
                f"emb_features {self.emb_features} is not divisible by num_heads {self.num_heads}"
            )
        if self.head and self.head_spec is None:
            known = ", ".join(spec.kind for spec in self.heads) or "none"
            raise InputRefused(f"head is {self.head!a:.200}; the model has {known}")
        if self.head == "span" and self.head_spec is not None and self.head_spec.outputs != ENDS:
            raise InputRefused(
                f"the config names {self.head_spec.outputs} labels; question answering has "
                f"{ENDS}, start and end: take num_labels, id2label and label2id out of it"
            )

    def head_module(self) -> Head | None:
        """Return the module of the head in use, or None."""
        spec = self.head_spec
        return spec and Head(spec, self.tied_head, self.dtype, self.param_dtype, self.dropout)

    def pooler_module(self) -> Dense | None:
        """Return the map of the pooler, or None."""
        if not self.has_pooler:
            return None
        return Dense(
            (self.emb_features,), use_bias=True, dtype=self.dtype, param_dtype=self.param_dtype
        )

    def finished(
        self,
        hidden: jax.Array,
        mask: jax.Array | None,
        table: jax.Array,
        head: Head | None,
        pool: Dense | None,
    ) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names.

        Args:
            hidden: the last layer's states [B, L, D].
            mask: [B, L], nonzero where a token is real, or None.
            table: the embedding's rows.
            head: what `head_module` gave.
            pool: what `pooler_module` gave.

        Returns:
            A head's logits; without one `last_hidden_state`, and `pooler_output` [B, D] and
            `sentence_embedding` [B, S] where the model has them.
        """
        if head is not None:
            return head(hidden, mask, table)
        outputs = {"last_hidden_state": hidden}
        if pool is not None:
            outputs["pooler_output"] = jnp.tanh(pool(hidden[:, 0]))
        if self.sentence is not None:
            outputs["sentence_embedding"] = sentence_embedding(hidden, mask, self.sentence)
        return outputs

    def finishing_axes(self) -> dict[str, Any]:
        """Return the axes of the parameters behind the layers, those of head and pooler."""
        axes: dict[str, Any] = {}
        if self.has_pooler:
            axes["pool"] = linear_axes(("embed",), ("transform",), True)
        if self.head_spec is not None:
            axes["top"] = head_axes(self.head_spec, self.tied_head)
        return axes

    def axis_sizes(self) -> dict[str, int]:
        """Return the length of each axis of a parameter."""
        sizes = {
            **block_sizes(self.block_spec, self.num_layers),
            "vocab": self.vocab_size,
            "table_features": self.emb_features,
            "transform": self.emb_features,
        }
        return sizes | (head_sizes(self.head_spec) if self.head_spec is not None else {})

    def parameter_axes(self) -> dict[str, Any]:
        """Return the name of each axis of each parameter: what a layout's rules speak of."""
        raise NotImplementedError

    def parameter_shapes(self) -> dict[str, Any]:
        """Return the shapes of `init`'s parameters, without tracing it."""
        self.check()
        sizes = self.axis_sizes()
        return each_leaf(
            self.parameter_axes(),
            lambda axes: jax.ShapeDtypeStruct(
                tuple(sizes[axis] for axis in axes), self.param_dtype
            ),
        )

    def example_inputs(self) -> dict[str, np.ndarray]:
        """Return inputs for a short run that says whether two models are the same."""
        return {"input_ids": example_ids(self.vocab_size, max(1, min(EXAMPLE, self.max_seq_len)))}
