"""OLMo 2: Llama with norms behind each branch, and on all heads of queries and keys as one."""

from __future__ import annotations

from bridges.config import Keys
from bridges.decoders import Defaults, decoder_rows, read_decoder
from bridges.family import Family
from bridges.rope import rope_entries
from bridges.table import Row
from dew.nn.backbones.causal_transformer import CausalTransformer

DEFAULTS = Defaults(50304, 4096, 11008, 32, 32, 2048, rms_norm_eps=1e-5)
NORMS = {
    "attention_out_norm": "post_attention_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}


def model(keys: Keys) -> CausalTransformer:
    """Return the model that an OLMo 2 config describes; defaults are `Olmo2Config`'s."""
    bias = keys.flag("attention_bias", False)
    return read_decoder(
        keys, DEFAULTS, norm_places="after", head_norm="width", qkv_bias=bias, out_bias=bias
    )


def rows(model: CausalTransformer) -> tuple[Row, ...]:
    """Return OLMo's tensors (theirs) and dew's leaves (ours)."""
    return decoder_rows(model, norms=NORMS)


FAMILY = Family(
    model_type="olmo2",
    architectures=("Olmo2ForCausalLM",),
    model=model,
    rows=rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    harmless=frozenset({"attention_dropout"}),
    exported=rope_entries,
)
"""The family that `model_type: olmo2` names."""
