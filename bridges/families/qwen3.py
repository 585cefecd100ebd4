"""Qwen 3: Llama with a norm on each head of queries and keys."""

from __future__ import annotations

from bridges.config import Keys
from bridges.decoders import Defaults, decoder_rows, read_decoder
from bridges.families.qwen2 import qwen_windows
from bridges.family import Family
from bridges.rope import rope_entries
from dew.nn.backbones.causal_transformer import CausalTransformer

DEFAULTS = Defaults(151936, 4096, 22016, 32, 32, 32768, num_key_value_heads=32, head_dim=128)


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a Qwen 3 config describes; defaults are `Qwen3Config`'s."""
    bias = keys.flag("attention_bias", False)
    return read_decoder(
        keys, DEFAULTS, qkv_bias=bias, out_bias=bias, head_norm="head", **qwen_windows(keys)
    )


FAMILY = Family(
    model_type="qwen3",
    architectures=("Qwen3ForCausalLM",),
    model=model,
    rows=decoder_rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    harmless=frozenset({"attention_dropout"}),
    exported=rope_entries,
)
"""The family that `model_type: qwen3` names."""
