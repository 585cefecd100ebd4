"""SmolLM 3: Llama whose every fourth layer turns no positions."""

from __future__ import annotations

from bridges.config import Keys
from bridges.decoders import Defaults, decoder_rows, read_decoder, read_windows
from bridges.family import Family
from bridges.rope import rope_entries
from dew.nn.backbones.causal_transformer import CausalTransformer

DEFAULTS = Defaults(
    128256,
    2048,
    11008,
    36,
    16,
    32768,
    num_key_value_heads=4,
    rope_theta=2e6,
    tie_word_embeddings=True,
)


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a SmolLM 3 config describes; defaults are `SmolLM3Config`'s."""
    layers = keys.integer("num_hidden_layers", DEFAULTS.num_hidden_layers)
    every = keys.integer("no_rope_layer_interval", 4)
    turned = keys.numbers("no_rope_layers") or [float(bool((i + 1) % every)) for i in range(layers)]
    if len(turned) != layers:
        keys.refuse("no_rope_layers", f"expected {layers} numbers, one a layer")
    window = keys.integer("sliding_window", None)
    if not keys.flag("use_sliding_window", False):
        window = None
    bias = keys.flag("attention_bias", False)
    return read_decoder(
        keys,
        DEFAULTS,
        unturned=tuple(not turn for turn in turned),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=keys.flag("mlp_bias", False),
        **read_windows(keys, layers, window, [not turn for turn in turned]),
    )


FAMILY = Family(
    model_type="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    model=model,
    rows=decoder_rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    tied_default=True,
    harmless=frozenset({"attention_dropout", "max_window_layers"}),
    exported=rope_entries,
)
"""The family that `model_type: smollm3` names."""
