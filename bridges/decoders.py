"""What families of decoders share: common config keys, and the tensor names that Llama began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridges.config import Keys, read_activation
from bridges.moves import KEEP, TRANSPOSE, Move, merge_heads, split_bias, split_heads
from bridges.rope import read_rope
from bridges.table import Row
from dew.nn.backbones.causal_transformer import CausalTransformer

LAYER = "model.layers.{layer}."
PRE_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
"""dew's norms to Llama's names for them."""
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Defaults:
    """What a config class takes where config.json does not say, by the names of its keys."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    activation: str = "silu"


def read_decoder(keys: Keys, defaults: Defaults, **more: Any) -> CausalTransformer:
    """Return the model of a config with Llama's keys.

    Args:
        keys: the config.
        defaults: the family's own.
        **more: fields of the model, which stand over what is read here.
    """
    hidden = keys.integer("hidden_size", defaults.hidden_size)
    heads = keys.integer("num_attention_heads", defaults.num_attention_heads)
    kv_heads = keys.integer("num_key_value_heads", None)
    if kv_heads is None and "num_key_value_heads" not in keys.values:
        kv_heads = defaults.num_key_value_heads
    kv_heads = kv_heads or heads
    size = keys.integer("head_dim", defaults.head_dim)
    if size is None and hidden % heads:
        keys.clash("hidden_size", f"not divisible by num_attention_heads {heads}")
    if heads % kv_heads:
        keys.clash("num_key_value_heads", f"does not divide num_attention_heads {heads}")
    size = size or hidden // heads
    if size % 2:
        keys.clash("head_dim", f"rotary positions need an even head size, found {size}")
    fields = {
        "vocab_size": keys.integer("vocab_size", defaults.vocab_size),
        "emb_features": hidden,
        "num_layers": keys.integer("num_hidden_layers", defaults.num_hidden_layers),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_features": size,
        "mlp_features": keys.integer("intermediate_size", defaults.intermediate_size),
        "max_seq_len": keys.integer("max_position_embeddings", defaults.max_position_embeddings),
        "norm": "rms",
        "norm_epsilon": keys.number("rms_norm_eps", defaults.rms_norm_eps, low=0.0),
        "mlp": "gated",
        "positions": "rotary",
        "tied_head": keys.flag("tie_word_embeddings", defaults.tie_word_embeddings),
    }
    if "activation" not in more:
        fields["activation"] = read_activation(keys, "hidden_act", defaults.activation)
    if "rope" not in more:
        fields["rope"] = read_rope(keys, defaults.rope_theta)
    return CausalTransformer(**(fields | more))


def read_windows(
    keys: Keys, layers: int, window: int | None, default: Sequence[bool]
) -> dict[str, Any]:
    """Return the model's `window` and `windowed` from `layer_types`.

    Args:
        keys: the config.
        layers: how many layers there are.
        window: the window's length, None where no layer has one.
        default: which layers have it where `layer_types` does not say.
    """
    kinds = keys.words("layer_types")
    if kinds and (len(kinds) != layers or set(kinds) - {SLIDING, FULL}):
        keys.refuse("layer_types", f"expected {layers} times {SLIDING} or {FULL}")
    windowed = tuple(kind == SLIDING for kind in kinds) if kinds else tuple(default)
    if window is None or not any(windowed):
        return {}
    return {"window": window, "windowed": windowed}


def decoder_rows(
    model: CausalTransformer,
    *,
    norms: Mapping[str, str] = PRE_NORMS,
    attention: Sequence[Row] | None = None,
    mlp: Sequence[Row] | None = None,
) -> tuple[Row, ...]:
    """Return the tensors (theirs) and leaves (ours) of a model with Llama's names.

    Args:
        model: the model.
        norms: each of the layer's norms to its tensor's name.
        attention: the rows of the attention's maps where they are not Llama's.
        mlp: the rows of the MLP where they are not Llama's.
    """
    table = [
        Row("model.embed_tokens.weight", "embed/table"),
        *(Row(f"{LAYER}{theirs}.weight", f"layers/{ours}/scale") for ours, theirs in norms.items()),
        *(attention_rows(model) if attention is None else attention),
        *(mlp_rows(model) if mlp is None else mlp),
        Row("model.norm.weight", "final_norm/scale"),
    ]
    if model.head_norm:
        table += [
            Row(f"{LAYER}self_attn.{theirs}_norm.weight", f"layers/attention/{ours}_norm/scale")
            for theirs, ours in (("q", "query"), ("k", "key"))
        ]
    if not model.tied_head:
        table.append(Row("lm_head.weight", "head/table"))
    return tuple(table)


def attention_rows(model: CausalTransformer) -> list[Row]:
    """Return the rows of `q_proj`, `k_proj`, `v_proj` and `o_proj`."""
    heads, kv_heads = model.num_heads, model.kv_heads
    rows = []
    for theirs, ours, count in (
        ("q", "query", heads),
        ("k", "key", kv_heads),
        ("v", "value", kv_heads),
    ):
        rows += linear(f"self_attn.{theirs}_proj", f"attention/{ours}", split_heads(count))
        if model.qkv_bias:
            rows += bias(f"self_attn.{theirs}_proj", f"attention/{ours}", split_bias(count))
    rows += linear("self_attn.o_proj", "attention/out", merge_heads(heads))
    return rows + (bias("self_attn.o_proj", "attention/out") if model.out_bias else [])


def mlp_rows(model: CausalTransformer) -> list[Row]:
    """Return the rows of `gate_proj`, `up_proj` and `down_proj`."""
    rows = []
    for name in ("gate", "up", "down"):
        rows += linear(f"mlp.{name}_proj", f"mlp/{name}", TRANSPOSE)
        rows += bias(f"mlp.{name}_proj", f"mlp/{name}") if model.mlp_bias else []
    return rows


def expert_rows(router: str, expert: str, names: Mapping[str, str]) -> list[Row]:
    """Return the rows of a mixture of experts.

    Args:
        router: the router's name within a layer.
        expert: what the names of one expert's maps start with, with `{expert}`.
        names: dew's `gate`, `up` and `down` to their names for them.
    """
    return [
        Row(f"{LAYER}{router}.weight", "layers/mlp/router", TRANSPOSE),
        *(
            Row(f"{LAYER}{expert}{theirs}.weight", f"layers/mlp/{ours}", TRANSPOSE)
            for ours, theirs in names.items()
        ),
    ]


def linear(theirs: str, ours: str, move: Move) -> list[Row]:
    """Return the row of a layer's kernel."""
    return [Row(f"{LAYER}{theirs}.weight", f"layers/{ours}/kernel", move)]


def bias(theirs: str, ours: str, move: Move = KEEP) -> list[Row]:
    """Return the row of a layer's bias."""
    return [Row(f"{LAYER}{theirs}.bias", f"layers/{ours}/bias", move)]
