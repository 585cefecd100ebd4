"""Gemma: scaled embeddings, RMS norms with an offset of one, wide heads, a tanh-gated MLP."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.decoders import Defaults, decoder_rows, read_decoder
from bridges.family import Family
from bridges.rope import rope_entries
from dew.nn.backbones.causal_transformer import CausalTransformer

DEFAULTS = Defaults(
    256000,
    3072,
    24576,
    28,
    16,
    8192,
    num_key_value_heads=16,
    head_dim=256,
    tie_word_embeddings=True,
    activation="gelu_pytorch_tanh",
)


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a Gemma config describes; defaults are `GemmaConfig`'s."""
    keys.only("use_bidirectional_attention", False)
    bias = keys.flag("attention_bias", False)
    own = read_activation(keys, "hidden_activation", DEFAULTS.activation)
    # The first checkpoints say "gelu" and mean the tanh form, as `hidden_activation` then tells.
    named = read_activation(keys, "hidden_act", own)
    if "hidden_activation" in keys or named == "gelu":
        named = own
    return read_decoder(
        keys,
        DEFAULTS,
        activation=named,
        norm="rms_offset",
        embed_scale=keys.integer("hidden_size", DEFAULTS.hidden_size) ** 0.5,
        qkv_bias=bias,
        out_bias=bias,
    )


FAMILY = Family(
    model_type="gemma",
    architectures=("GemmaForCausalLM",),
    model=model,
    rows=decoder_rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    tied_default=True,
    harmless=frozenset({"attention_dropout"}),
    exported=rope_entries,
)
"""The family that `model_type: gemma` names."""
