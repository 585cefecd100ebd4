"""The bidirectional transformer: fills in masked tokens from those on both sides."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.errors import InputRefused
from dew.nn.backbones.causal_transformer import Table, token_positions
from dew.nn.block import BlockSpec
from dew.nn.constraint import constrained
from dew.nn.norms import NORMS
from dew.nn.rotary import Rope, angles
from dew.nn.sight import Sight
from dew.nn.stack import block_stack, full_mask


class MaskedTransformer(nn.Module):
    """Maps token ids [B, L], some of them `mask_token`, to logits [B, L, V] of what stands there.

    The embedding holds one row more than the vocabulary, the mask's; the head has none for it, so
    a mask is never predicted.

    Args:
        vocab_size: V, the real tokens: ids 0 to V - 1. `mask_token` is V.
        emb_features: D, width of the residual stream.
        num_layers, num_heads, mlp_features: depth, heads H and inner width of the MLP.
        max_seq_len: the longest row in tokens.
        norm: "rms" or "layer"; `norm_epsilon` is added to the variance.
        mlp: "gated" or "plain"; `activation` is a Hugging Face activation name.
        positions: "rotary" (turned as `rope` says) or "learned".
        tied_head: the head's table is the embedding's, without the mask's row.
        bias: whether the linear maps carry one.
        dtype: what activations are computed in; `param_dtype` is what parameters are stored in.
        attention_impl: "auto", "xla" or "cudnn".
        remat: recompute each layer in the backward pass instead of keeping its activations.
    """

    vocab_size: int
    emb_features: int
    num_layers: int
    num_heads: int
    mlp_features: int
    max_seq_len: int
    norm: str = "rms"
    norm_epsilon: float = 1e-6
    mlp: str = "gated"
    activation: str = "silu"
    positions: str = "rotary"
    rope: Rope = Rope()
    tied_head: bool = True
    bias: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"
    attention_impl: str = "auto"
    remat: bool = False

    def setup(self) -> None:
        """Declare the tables, the scanned layers and the last norm."""
        if self.emb_features % self.num_heads:
            raise InputRefused(
                f"emb_features {self.emb_features} is not divisible by num_heads {self.num_heads}"
            )
        if self.norm not in NORMS or self.positions not in ("rotary", "learned"):
            raise InputRefused(
                f"norm {self.norm!a:.200} and positions {self.positions!a:.200}; expected one of "
                f"{', '.join(NORMS)} and one of rotary, learned"
            )
        self.embed = Table(self.vocab_size + 1, self.emb_features, self.param_dtype)
        if self.positions == "learned":
            self.position_embed = Table(self.max_seq_len, self.emb_features, self.param_dtype)
        self.layers = block_stack(self.block_spec, self.num_layers, remat=self.remat)
        self.final_norm = NORMS[self.norm](self.norm_epsilon, self.param_dtype)
        if not self.tied_head:
            self.head = Table(self.vocab_size, self.emb_features, self.param_dtype)

    @property
    def mask_token(self) -> int:
        """The id that stands for a token to be filled in."""
        return self.vocab_size

    @property
    def block_spec(self) -> BlockSpec:
        """The sizes of one layer."""
        return BlockSpec(
            emb_features=self.emb_features,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_features=self.emb_features // self.num_heads,
            mlp_features=self.mlp_features,
            norm=self.norm,
            norm_epsilon=self.norm_epsilon,
            mlp=self.mlp,
            activation=self.activation,
            qkv_bias=self.bias,
            out_bias=self.bias,
            mlp_bias=self.bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            attention_impl=self.attention_impl,
            adapter_scale=1.0,
        )

    def __call__(
        self,
        tokens: jax.Array,
        *,
        mask: jax.Array | None = None,
        segments: jax.Array | None = None,
    ) -> jax.Array:
        """Return the logits of the token at each place.

        Args:
            tokens: int32 [B, L], ids in [0, V], V for a mask.
            mask: [B, L], nonzero where a token (masked or not) is real.
            segments: int32 [B, L], the document of each token, 0 for padding. Documents do not
                see each other, and positions count anew in each.

        Returns:
            float32 [B, L, V].
        """
        hidden, table = self.hidden_and_table(tokens, mask=mask, segments=segments)
        return jnp.einsum(
            "bld,vd->blv", hidden, table.astype(self.dtype), preferred_element_type=jnp.float32
        )

    def hidden_and_table(
        self,
        tokens: jax.Array,
        *,
        mask: jax.Array | None = None,
        segments: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Return the normed output of the last layer [B, L, D] and the head's rows [V, D]."""
        length = tokens.shape[1]
        if length > self.max_seq_len:
            raise InputRefused(
                f"{length} tokens for a model of {self.max_seq_len} positions; shorten the rows"
            )
        positions = token_positions(tokens.shape, mask, segments)
        x = jnp.take(self.embed(), tokens, axis=0, mode="clip").astype(self.dtype)
        turn: Any = None
        if self.positions == "learned":
            rows = jnp.take(self.position_embed(), positions, axis=0, mode="clip")
            x = x + rows.astype(self.dtype)
        else:
            head = self.emb_features // self.num_heads
            turn = angles(self.rope, positions, features=head, max_seq_len=self.max_seq_len)
        x = constrained(x, "batch", "length", None)
        x, _ = self.layers(x, Sight(turn, full_mask(length, mask, segments)), None)
        return self.final_norm(x), self.head_table()

    def head_table(self) -> jax.Array:
        """Return the head's rows [V, D]; the mask has none."""
        return self.embed()[: self.vocab_size] if self.tied_head else self.head()
