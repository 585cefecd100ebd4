"""Mixtral: Mistral with a mixture of gated MLPs."""

from __future__ import annotations

from bridges.config import Keys
from bridges.decoders import Defaults, decoder_rows, expert_rows, read_decoder
from bridges.family import Family
from bridges.rope import rope_entries
from bridges.table import Row
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.block import Experts

DEFAULTS = Defaults(
    32000, 4096, 14336, 32, 32, 131072, num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=1e6
)


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a Mixtral config describes; defaults are `MixtralConfig`'s."""
    keys.only("router_jitter_noise", 0.0)
    experts = Experts(
        keys.integer("num_local_experts", 8), keys.integer("num_experts_per_tok", 2), True
    )
    window = keys.integer("sliding_window", None)
    return read_decoder(keys, DEFAULTS, window=window, experts=experts)


def rows(model: CausalTransformer) -> tuple[Row, ...]:
    """Return Mixtral's tensors (theirs) and dew's leaves (ours)."""
    names = {"gate": "w1", "up": "w3", "down": "w2"}
    experts = expert_rows("block_sparse_moe.gate", "block_sparse_moe.experts.{expert}.", names)
    return decoder_rows(model, mlp=experts)


FAMILY = Family(
    model_type="mixtral",
    architectures=("MixtralForCausalLM",),
    model=model,
    rows=rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    harmless=frozenset({"attention_dropout", "output_router_logits", "router_aux_loss_coef"}),
    exported=rope_entries,
)
"""The family that `model_type: mixtral` names."""
