"""GPT-NeoX and Pythia: both branches beside one residual, heads turned in part, biases."""

from __future__ import annotations

from typing import Any

from bridges.config import Keys, read_activation
from bridges.family import Family
from bridges.moves import TRANSPOSE, Move, in_turn, merge_heads, split_bias, split_heads
from bridges.rope import read_rope, rope_entries, rotary_share
from bridges.table import Row
from dew.nn.backbones.causal_transformer import CausalTransformer

LAYER = "gpt_neox.layers.{layer}."
HARMLESS = "attention_dropout hidden_dropout classifier_dropout attention_probs_dropout_prob"
SHARE, THETA = 0.25, 10000.0


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a GPT-NeoX config describes; defaults are `GPTNeoXConfig`'s."""
    hidden, heads = keys.integer("hidden_size", 6144), keys.integer("num_attention_heads", 64)
    if hidden % heads:
        keys.clash("hidden_size", f"not divisible by num_attention_heads {heads}")
    share = rotary_share(keys, keys.number("rotary_pct", SHARE, low=0.0))
    theta = keys.number("rotary_emb_base", THETA, low=1e-6)
    bias = keys.flag("attention_bias", True)
    parallel = keys.flag("use_parallel_residual", True)
    return CausalTransformer(
        vocab_size=keys.integer("vocab_size", 50432),
        emb_features=hidden,
        num_layers=keys.integer("num_hidden_layers", 44),
        num_heads=heads,
        mlp_features=keys.integer("intermediate_size", 24576),
        max_seq_len=keys.integer("max_position_embeddings", 2048),
        norm="layer",
        norm_places="parallel" if parallel else "before",
        norm_epsilon=keys.number("layer_norm_eps", 1e-5, low=0.0),
        mlp="plain",
        activation=read_activation(keys, "hidden_act", "gelu"),
        positions="rotary",
        rope=read_rope(keys, theta, partial=True),
        rotary_features=int(hidden // heads * share),
        tied_head=keys.flag("tie_word_embeddings", False),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
    )


def rows(model: CausalTransformer) -> tuple[Row, ...]:
    """Return GPT-NeoX's tensors (theirs) and dew's leaves (ours).

    Its fused map holds query, key and value of the first head, then those of the second.
    """
    heads = model.num_heads
    table = [
        Row("gpt_neox.embed_in.weight", "embed/table"),
        *_both("input_layernorm", "attention_norm", "scale"),
        *_both("post_attention_layernorm", "mlp_norm", "scale"),
        _fused("weight", "kernel", in_turn(split_heads(heads), heads)),
        Row(f"{LAYER}attention.dense.weight", "layers/attention/out/kernel", merge_heads(heads)),
        *_both("mlp.dense_h_to_4h", "mlp/up", "kernel"),
        *_both("mlp.dense_4h_to_h", "mlp/down", "kernel"),
        Row("gpt_neox.final_layer_norm.weight", "final_norm/scale"),
        Row("gpt_neox.final_layer_norm.bias", "final_norm/bias"),
    ]
    if model.qkv_bias:
        table += [
            _fused("bias", "bias", in_turn(split_bias(heads), heads)),
            Row(f"{LAYER}attention.dense.bias", "layers/attention/out/bias"),
        ]
    if not model.tied_head:
        table.append(Row("embed_out.weight", "head/table"))
    return tuple(table)


def _fused(theirs: str, ours: str, move: Move) -> Row:
    leaves = tuple(f"layers/attention/{name}/{ours}" for name in ("query", "key", "value"))
    return Row(f"{LAYER}attention.query_key_value.{theirs}", leaves, move)


def _both(theirs: str, ours: str, weight: str) -> list[Row]:
    moved = {"move": TRANSPOSE} if weight == "kernel" else {}
    return [
        Row(f"{LAYER}{theirs}.weight", f"layers/{ours}/{weight}", **moved),
        Row(f"{LAYER}{theirs}.bias", f"layers/{ours}/bias"),
    ]


def exported(config: dict[str, Any]) -> dict[str, Any]:
    """Return the rotary keys of an exported config, in the spellings of transformers 4 and 5."""
    found = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    share = found.pop("partial_rotary_factor", None) or config.get("rotary_pct", SHARE)
    theta = found.get("rope_theta") or config.get("rotary_emb_base", THETA)
    entries = rope_entries({"rope_parameters": {**found, "rope_theta": theta}})
    del entries["rope_theta"]
    entries["rope_parameters"]["partial_rotary_factor"] = share
    return {**entries, "rotary_pct": share, "rotary_emb_base": theta}


FAMILY = Family(
    model_type="gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    model=model,
    rows=rows,
    base_prefix="gpt_neox.",
    embedding="gpt_neox.embed_in.weight",
    head="embed_out.weight",
    harmless=frozenset(HARMLESS.split()),
    ignored=(
        r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias)",
        r"gpt_neox\.layers\.\d+\.attention\.rotary_emb\.inv_freq",
    ),
    exported=exported,
)
"""The family that `model_type: gpt_neox` names."""
