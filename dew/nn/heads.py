"""What stands on a text encoder: heads for its tasks, and the pooling of sentence embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.errors import InputRefused
from dew.nn.activations import activation
from dew.nn.backbones.encoder_block import ENCODER_NORMS, linear_axes, norm_axes
from dew.nn.dense import INIT_DEVIATION, Dense
from dew.nn.dropout import NO_DROPOUT, Dropout, dropped

HEAD_TASKS = {
    "": "feature-extraction",
    "masked": "fill-mask",
    "sequence": "text-classification",
    "token": "token-classification",
    "span": "question-answering",
    "detection": "",
}
"""The kinds of heads, "" for none, to the pipeline's task that each does."""
POOLING_MODES = ("cls", "max", "mean")
SMALLEST_NORM = 1e-12
FAR_BELOW = -1e9


@dataclass(frozen=True)
class HeadSpec:
    """One head: what is pooled, an optional map with activation and norm, and the last map.

    Args:
        kind: "masked" (logits over the vocabulary), "sequence", "token" (labels of a text or of
            each token), "span" (where an answer starts and ends) or "detection" (one logit a
            token).
        outputs: how many labels; the vocabulary's size where the kind is "masked".
        features: width of the map before the last; None for none.
        activation: a Hugging Face activation name, behind that map.
        norm: "layer", "layer_unbiased" or "" for none, behind the activation.
        norm_epsilon: added to its variance.
        dense_bias: whether that map has a bias.
        out_bias: whether the last map has one.
        pool: "first" (the first token's state) or "mean" (over real tokens), for "sequence".
    """

    kind: str
    outputs: int
    features: int | None = None
    activation: str = "tanh"
    norm: str = ""
    norm_epsilon: float = 1e-12
    dense_bias: bool = True
    out_bias: bool = True
    pool: str = "first"


@dataclass(frozen=True)
class SentencePooling:
    """How a text's vector is made of its tokens' states, as sentence-transformers says it.

    Args:
        modes: some of `POOLING_MODES`, whose vectors are put one behind the other.
        normalized: whether the whole is divided by its Euclidean length.
        max_tokens: how many tokens of a text are looked at; None for as many as the model can.
    """

    modes: tuple[str, ...] = ("mean",)
    normalized: bool = False
    max_tokens: int | None = None


class Head(nn.Module):
    """A head of `spec`; a masked one without a table of its own is given the embedding's."""

    spec: HeadSpec
    tied: bool = True
    dtype: str = "float32"
    param_dtype: str = "float32"
    dropout: Dropout = NO_DROPOUT

    @nn.compact
    def __call__(
        self, hidden: jax.Array, mask: jax.Array | None, table: jax.Array
    ) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names.

        Args:
            hidden: [B, L, D].
            mask: [B, L], nonzero where a token is real, or None.
            table: the embedding's rows [V, E], for a tied masked head.

        Returns:
            float32 `logits` [B, L, V], [B, L, labels], [B, labels] or [B, L]; or `start_logits`
            and `end_logits` [B, L].
        """
        spec = self.spec
        x = pooled_states(hidden, mask, spec.pool) if spec.kind == "sequence" else hidden
        x = dropped(self, x, self.dropout.head_in)
        if spec.features is not None:
            x = self._dense(spec.features, spec.dense_bias, "dense")(x)
            x = activation(spec.activation)(x)
            if spec.norm:
                x = ENCODER_NORMS[spec.norm](spec.norm_epsilon, self.param_dtype, name="norm")(x)
        if spec.kind == "masked":
            return {"logits": self._scores(x, table)}
        x = dropped(self, x, self.dropout.head_out)
        logits = self._dense(spec.outputs, spec.out_bias, "out")(x).astype(jnp.float32)
        if spec.kind == "span":
            return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
        return {"logits": logits[..., 0] if spec.kind == "detection" else logits}

    def _scores(self, x: jax.Array, table: jax.Array) -> jax.Array:
        """Return float32 [B, L, V]: a product with each row of the table."""
        spec = self.spec
        if not self.tied:
            shape = (spec.outputs, x.shape[-1])
            init = nn.initializers.normal(INIT_DEVIATION)
            table = self.param("table", init, shape, self.param_dtype)
        rows = table.astype(self.dtype)
        scores = jnp.einsum("bld,vd->blv", x, rows, preferred_element_type=jnp.float32)
        if not spec.out_bias:
            return scores
        bias = self.param("bias", nn.initializers.zeros, (spec.outputs,), self.param_dtype)
        return scores + bias.astype(jnp.float32)

    def _dense(self, features: int, bias: bool, name: str) -> Dense:
        return Dense(
            (features,),
            use_bias=bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name=name,
        )


def head_axes(spec: HeadSpec, tied: bool) -> dict[str, Any]:
    """Return the name of each axis of each parameter of a head; `head_sizes` has their lengths."""
    axes: dict[str, Any] = {}
    last = "embed"
    if spec.features is not None:
        last = "transform"
        axes["dense"] = linear_axes(("embed",), ("transform",), spec.dense_bias)
        if spec.norm:
            axes["norm"] = norm_axes(spec.norm, "transform")
    if spec.kind == "masked":
        if not tied:
            axes["table"] = ("vocab", "table_features")
        if spec.out_bias:
            axes["bias"] = ("vocab",)
        return axes
    return {**axes, "out": linear_axes((last,), ("labels",), spec.out_bias)}


def head_sizes(spec: HeadSpec) -> dict[str, int]:
    """Return the lengths of the axes that `head_axes` alone names."""
    return {"transform": spec.features or 0, "labels": spec.outputs}


def pooled_states(hidden: jax.Array, mask: jax.Array | None, mode: str) -> jax.Array:
    """Return one vector [B, D] for each text.

    Args:
        hidden: [B, L, D].
        mask: [B, L], nonzero where a token is real, or None where all are.
        mode: "first" or "cls" (the first place, padding or not, as in transformers), "mean" or
            "max" over the real tokens.

    Raises:
        InputRefused: another mode.
    """
    if mode in ("first", "cls"):
        return hidden[:, 0]
    real = jnp.ones(hidden.shape[:2], bool) if mask is None else mask != 0
    if mode == "max":
        return jnp.max(jnp.where(real[..., None], hidden, FAR_BELOW), axis=1)
    if mode != "mean":
        raise InputRefused(f"pooling {mode!a:.200} is not known; expected one of first, mean, max")
    weights = real[..., None].astype(jnp.float32)
    count = jnp.maximum(jnp.sum(weights, axis=1), 1.0)
    total = jnp.sum(hidden.astype(jnp.float32) * weights, axis=1)
    return (total / count).astype(hidden.dtype)


def sentence_embedding(
    hidden: jax.Array, mask: jax.Array | None, pooling: SentencePooling
) -> jax.Array:
    """Return the texts' vectors, float32 [B, D times the number of modes].

    Args:
        hidden: the last layer's states [B, L, D].
        mask: [B, L], nonzero where a token is real, or None where all are.
        pooling: how.

    Source: Reimers and Gurevych 2019, arXiv:1908.10084, and the order of the modes in
    sentence-transformers.
    """
    vectors = [pooled_states(hidden, mask, mode) for mode in pooling.modes]
    whole = jnp.concatenate(vectors, axis=-1).astype(jnp.float32)
    if not pooling.normalized:
        return whole
    length = jnp.sqrt(jnp.sum(jnp.square(whole), axis=-1, keepdims=True))
    return whole / jnp.maximum(length, SMALLEST_NORM)
