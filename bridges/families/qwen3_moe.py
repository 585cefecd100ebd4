"""Qwen 3 with a mixture of gated MLPs in every layer."""

from __future__ import annotations

from typing import Any

from bridges.config import Keys
from bridges.decoders import Defaults, decoder_rows, expert_rows, read_decoder
from bridges.family import Family, NotNative
from bridges.rope import rope_entries
from bridges.table import Row
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.block import Experts

DEFAULTS = Defaults(151936, 2048, 6144, 24, 32, 32768, num_key_value_heads=4)


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a Qwen 3 MoE config describes; defaults are `Qwen3MoeConfig`'s."""
    if keys.integer("decoder_sparse_step", 1) != 1 or keys.numbers("mlp_only_layers"):
        raise NotNative(f"{keys.where}: some layers are dense, others mixtures of experts")
    bias = keys.flag("attention_bias", False)
    window = keys.integer("sliding_window", 4096)
    experts = Experts(
        keys.integer("num_experts", keys.integer("num_local_experts", 128)),
        keys.integer("num_experts_per_tok", 8),
        keys.flag("norm_topk_prob", False),
    )
    return read_decoder(
        keys,
        DEFAULTS,
        qkv_bias=bias,
        out_bias=bias,
        head_norm="head",
        window=window if keys.flag("use_sliding_window", False) else None,
        experts=experts,
        mlp_features=keys.integer("moe_intermediate_size", 768),
    )


def rows(model: CausalTransformer) -> tuple[Row, ...]:
    """Return Qwen 3's tensors (theirs) and dew's leaves (ours)."""
    names = {name: f"{name}_proj" for name in ("gate", "up", "down")}
    return decoder_rows(model, mlp=expert_rows("mlp.gate", "mlp.experts.{expert}.", names))


def exported(config: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that transformers 4 and 5 spell in two ways."""
    experts = config.get("num_experts") or config.get("num_local_experts") or 128
    return {**rope_entries(config), "num_experts": experts, "num_local_experts": experts}


FAMILY = Family(
    model_type="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    model=model,
    rows=rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    harmless=frozenset(
        ["attention_dropout", "output_router_logits", "router_aux_loss_coef", "max_window_layers"]
    ),
    exported=exported,
)
"""The family that `model_type: qwen3_moe` names."""
