"""Mistral: Llama with a sliding window."""

from __future__ import annotations

from bridges.config import Keys
from bridges.decoders import Defaults, decoder_rows, read_decoder
from bridges.family import Family
from bridges.rope import rope_entries
from dew.nn.backbones.causal_transformer import CausalTransformer

DEFAULTS = Defaults(32000, 4096, 14336, 32, 32, 131072, num_key_value_heads=8)
WINDOW = 4096


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a Mistral config describes; defaults are `MistralConfig`'s."""
    # Null asks for no window, absence for the class's own.
    default = None if "sliding_window" in keys.values else WINDOW
    return read_decoder(keys, DEFAULTS, window=keys.integer("sliding_window", default))


FAMILY = Family(
    model_type="mistral",
    architectures=("MistralForCausalLM",),
    model=model,
    rows=decoder_rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    harmless=frozenset({"attention_dropout"}),
    exported=rope_entries,
)
"""The family that `model_type: mistral` names."""
