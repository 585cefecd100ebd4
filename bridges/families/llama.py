"""Llama: rotary positions, RMS norms, grouped-query attention, a gated MLP."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.family import Family
from bridges.moves import KEEP, TRANSPOSE, merge_heads, split_bias, split_heads
from bridges.rope import read_rope
from bridges.table import Row
from dew.nn.backbones.causal_transformer import CausalTransformer

LAYER = "model.layers.{layer}."


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a Llama config describes; defaults are `LlamaConfig`'s."""
    hidden, heads = keys.integer("hidden_size", 4096), keys.integer("num_attention_heads", 32)
    kv_heads = keys.integer("num_key_value_heads", heads)
    size = keys.integer("head_dim", None)
    if size is None and hidden % heads:
        keys.clash("hidden_size", f"not divisible by num_attention_heads {heads}")
    if heads % kv_heads:
        keys.clash("num_key_value_heads", f"does not divide num_attention_heads {heads}")
    size = size or hidden // heads
    if size % 2:
        keys.clash("head_dim", f"rotary positions need an even head size, found {size}")
    keys.only("pretraining_tp", 1)
    keys.only("rope_interleaved", False)
    keys.only("sliding_window")
    keys.only("use_sliding_window", False)
    bias = keys.flag("attention_bias", False)
    return CausalTransformer(
        vocab_size=keys.integer("vocab_size", 32000),
        emb_features=hidden,
        num_layers=keys.integer("num_hidden_layers", 32),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_features=size,
        mlp_features=keys.integer("intermediate_size", 11008),
        max_seq_len=keys.integer("max_position_embeddings", 2048),
        norm="rms",
        norm_epsilon=keys.number("rms_norm_eps", 1e-6, low=0.0),
        mlp="gated",
        activation=read_activation(keys, "hidden_act", "silu"),
        positions="rotary",
        rope=read_rope(keys),
        tied_head=keys.flag("tie_word_embeddings", False),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=keys.flag("mlp_bias", False),
    )


def rows(model: CausalTransformer) -> tuple[Row, ...]:
    """Return Llama's tensors (theirs) and dew's leaves (ours)."""
    heads, kv_heads = model.num_heads, model.num_kv_heads or model.num_heads
    table = [
        Row("model.embed_tokens.weight", "embed/table"),
        Row(f"{LAYER}input_layernorm.weight", "layers/attention_norm/scale"),
        *_linear("self_attn.q_proj", "attention/query", split_heads(heads)),
        *_linear("self_attn.k_proj", "attention/key", split_heads(kv_heads)),
        *_linear("self_attn.v_proj", "attention/value", split_heads(kv_heads)),
        *_linear("self_attn.o_proj", "attention/out", merge_heads(heads)),
        Row(f"{LAYER}post_attention_layernorm.weight", "layers/mlp_norm/scale"),
        *_linear("mlp.gate_proj", "mlp/gate", TRANSPOSE),
        *_linear("mlp.up_proj", "mlp/up", TRANSPOSE),
        *_linear("mlp.down_proj", "mlp/down", TRANSPOSE),
        Row("model.norm.weight", "final_norm/scale"),
    ]
    if model.qkv_bias:
        table += [
            Row(f"{LAYER}self_attn.q_proj.bias", "layers/attention/query/bias", split_bias(heads)),
            Row(f"{LAYER}self_attn.k_proj.bias", "layers/attention/key/bias", split_bias(kv_heads)),
            Row(
                f"{LAYER}self_attn.v_proj.bias", "layers/attention/value/bias", split_bias(kv_heads)
            ),
        ]
    if model.out_bias:
        table.append(Row(f"{LAYER}self_attn.o_proj.bias", "layers/attention/out/bias"))
    if model.mlp_bias:
        table += [
            Row(f"{LAYER}mlp.{name}_proj.bias", f"layers/mlp/{name}/bias", KEEP)
            for name in ("gate", "up", "down")
        ]
    if not model.tied_head:
        table.append(Row("lm_head.weight", "head/table"))
    return tuple(table)


def _linear(theirs: str, ours: str, move) -> list[Row]:
    return [Row(f"{LAYER}{theirs}.weight", f"layers/{ours}/kernel", move)]


FAMILY = Family(
    model_type="llama",
    architectures=("LlamaForCausalLM",),
    model=model,
    rows=rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    tied_default=False,
    harmless=frozenset({"attention_dropout", "is_llama_config"}),
    ignored=(
        r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        r"model\.rotary_emb\.inv_freq",
    ),
    rope=True,
)
"""The family that `model_type: llama` names."""
