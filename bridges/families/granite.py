"""Granite: Llama with four multipliers."""

from __future__ import annotations

from bridges.config import Keys
from bridges.decoders import Defaults, decoder_rows, read_decoder
from bridges.family import Family
from bridges.rope import rope_entries
from dew.nn.backbones.causal_transformer import CausalTransformer

DEFAULTS = Defaults(32000, 4096, 11008, 32, 32, 2048)


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a Granite config describes; defaults are `GraniteConfig`'s."""
    bias = keys.flag("attention_bias", False)
    return read_decoder(
        keys,
        DEFAULTS,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=keys.flag("mlp_bias", False),
        embed_scale=keys.number("embedding_multiplier", 1.0),
        residual_scale=keys.number("residual_multiplier", 1.0),
        score_scale=keys.number("attention_multiplier", 1.0),
        logit_scale=1.0 / keys.number("logits_scaling", 1.0, low=1e-6),
    )


FAMILY = Family(
    model_type="granite",
    architectures=("GraniteForCausalLM",),
    model=model,
    rows=decoder_rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    harmless=frozenset({"attention_dropout"}),
    exported=rope_entries,
)
"""The family that `model_type: granite` names."""
