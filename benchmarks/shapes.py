"""The two models that benchmarks run, with random weights, in transformers and in dew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Shape:
    """The sizes of a llama-type model with a tied head."""

    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    positions: int
    theta: float

    @property
    def parameters(self) -> int:
        """How many weights the model has."""
        head = self.width // self.heads
        attention = 2 * self.width * self.width + 2 * self.width * head * self.kv_heads
        layer = attention + 3 * self.width * self.inner + 2 * self.width
        return self.vocabulary * self.width + self.layers * layer + self.width

    def forward_flops(self, batch: int, length: int) -> float:
        """Return the FLOPs of one forward pass: the weights' products, and causal attention."""
        products = 2 * self.parameters * batch * length
        attention = 2 * 2 * self.layers * self.width * batch * length * length / 2
        return products + attention


SHAPES = {
    "smollm2-135m": Shape(49152, 576, 1536, 30, 9, 3, 8192, 100000.0),
    "llama-5m": Shape(4096, 256, 688, 5, 8, 8, 1024, 10000.0),
}


def torch_model(shape: Shape) -> Any:
    """Return transformers' model in float32, without an end token so that it decodes on."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.positions,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config)


def dew_model(shape: Shape) -> tuple[Any, Any]:
    """Return dew's module and its variables."""
    import jax
    import jax.numpy as jnp

    from dew.nn.backbones.causal_transformer import CausalTransformer
    from dew.nn.rotary import Rope

    model = CausalTransformer(
        vocab_size=shape.vocabulary,
        emb_features=shape.width,
        num_layers=shape.layers,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        mlp_features=shape.inner,
        max_seq_len=shape.positions,
        norm_epsilon=1e-5,
        rope=Rope(theta=shape.theta),
        tied_head=True,
    )
    return model, jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))


def dew_bundle(shape: Shape) -> Any:
    """Return dew's module and variables as a bundle, without an end token."""
    from dew.inference.bundle import Bundle

    model, variables = dew_model(shape)
    return Bundle(model=model, variables=variables, family="llama")


def tokens(shape: Shape, batch: int, length: int) -> np.ndarray:
    """Return random ids, int32 [batch, length]."""
    generator = np.random.default_rng(0)
    return generator.integers(0, shape.vocabulary, (batch, length)).astype(np.int32)
