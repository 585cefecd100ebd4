"""Gemma 2: Gemma with norms around each branch, capped scores and logits, alternating windows."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.decoders import Defaults, decoder_rows, read_decoder, read_windows
from bridges.family import Family
from bridges.rope import rope_entries
from bridges.table import Row
from dew.nn.backbones.causal_transformer import CausalTransformer

DEFAULTS = Defaults(
    256000, 2304, 9216, 26, 8, 8192, num_key_value_heads=4, head_dim=256, tie_word_embeddings=True
)
NORMS = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a Gemma 2 config describes; defaults are `Gemma2Config`'s."""
    keys.only("use_bidirectional_attention", False)
    layers = keys.integer("num_hidden_layers", DEFAULTS.num_hidden_layers)
    bias = keys.flag("attention_bias", False)
    window = keys.integer("sliding_window", 4096)
    # transformers reads only `hidden_activation`; checkpoints carry both.
    activation = read_activation(keys, "hidden_activation", "gelu_pytorch_tanh")
    read_activation(keys, "hidden_act", activation)
    return read_decoder(
        keys,
        DEFAULTS,
        activation=activation,
        norm="rms_offset",
        norm_places="around",
        embed_scale=keys.integer("hidden_size", DEFAULTS.hidden_size) ** 0.5,
        score_scale=keys.integer("query_pre_attn_scalar", 256) ** -0.5,
        score_cap=capping(keys, "attn_logit_softcapping", 50.0),
        logit_cap=capping(keys, "final_logit_softcapping", 30.0),
        qkv_bias=bias,
        out_bias=bias,
        **read_windows(keys, layers, window, [not layer % 2 for layer in range(layers)]),
    )


def capping(keys: Keys, key: str, default: float | None) -> float | None:
    """Return a soft cap; null asks for none, absence for the class's own."""
    return keys.number(key, None if key in keys.values else default, low=1e-6)


def rows(model: CausalTransformer) -> tuple[Row, ...]:
    """Return Gemma's tensors (theirs) and dew's leaves (ours)."""
    return decoder_rows(model, norms=NORMS)


FAMILY = Family(
    model_type="gemma2",
    architectures=("Gemma2ForCausalLM",),
    model=model,
    rows=rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    tied_default=True,
    harmless=frozenset({"attention_dropout", "cache_implementation"}),
    exported=rope_entries,
)
"""The family that `model_type: gemma2` names."""
