"""Llama: rotary positions, RMS norms, grouped-query attention, a gated MLP."""

from __future__ import annotations

from bridges.config import Keys
from bridges.decoders import Defaults, decoder_rows, read_decoder
from bridges.family import Family
from bridges.rope import rope_entries
from dew.nn.backbones.causal_transformer import CausalTransformer

DEFAULTS = Defaults(32000, 4096, 11008, 32, 32, 2048)


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a Llama config describes; defaults are `LlamaConfig`'s."""
    keys.only("pretraining_tp", 1)
    keys.only("rope_interleaved", False)
    keys.only("sliding_window")
    keys.only("use_sliding_window", False)
    bias = keys.flag("attention_bias", False)
    return read_decoder(
        keys, DEFAULTS, qkv_bias=bias, out_bias=bias, mlp_bias=keys.flag("mlp_bias", False)
    )


FAMILY = Family(
    model_type="llama",
    architectures=("LlamaForCausalLM",),
    model=model,
    rows=decoder_rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    harmless=frozenset({"attention_dropout", "is_llama_config"}),
    ignored=(
        r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        r"model\.rotary_emb\.inv_freq",
    ),
    exported=rope_entries,
)
"""The family that `model_type: llama` names."""
