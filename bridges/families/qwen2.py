"""Qwen 2 and 2.5: Llama with biases on queries, keys and values."""

from __future__ import annotations

from typing import Any

from bridges.config import Keys
from bridges.decoders import Defaults, decoder_rows, read_decoder, read_windows
from bridges.family import Family
from bridges.rope import rope_entries
from dew.nn.backbones.causal_transformer import CausalTransformer

DEFAULTS = Defaults(151936, 4096, 22016, 32, 32, 32768, num_key_value_heads=32)


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a Qwen 2 config describes; defaults are `Qwen2Config`'s."""
    return read_decoder(keys, DEFAULTS, qkv_bias=True, **qwen_windows(keys))


def qwen_windows(keys: Keys) -> dict[str, Any]:
    """Return `window` and `windowed`: from `max_window_layers` on where `layer_types` is absent."""
    layers = keys.integer("num_hidden_layers", DEFAULTS.num_hidden_layers)
    first = keys.integer("max_window_layers", 28, low=0)
    window = keys.integer("sliding_window", None if "sliding_window" in keys.values else 4096)
    if not keys.flag("use_sliding_window", False):
        window = None
    return read_windows(keys, layers, window, [layer >= first for layer in range(layers)])


FAMILY = Family(
    model_type="qwen2",
    architectures=("Qwen2ForCausalLM",),
    model=model,
    rows=decoder_rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    harmless=frozenset({"attention_dropout"}),
    exported=rope_entries,
)
"""The family that `model_type: qwen2` names."""
