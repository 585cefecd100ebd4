"""OPT: learned positions that start at the third row, layer norms, a plain MLP, tied head."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.family import Family, NotNative
from bridges.moves import TRANSPOSE, merge_heads, split_bias, split_heads
from bridges.table import Row
from dew.nn.backbones.causal_transformer import CausalTransformer

LAYER = "model.decoder.layers.{layer}."
OFFSET = 2
HARMLESS = "attention_dropout dropout layerdrop activation_dropout init_std"


def model(keys: Keys) -> CausalTransformer:
    """Return the model that an OPT config describes; defaults are `OPTConfig`'s."""
    hidden, heads = keys.integer("hidden_size", 768), keys.integer("num_attention_heads", 12)
    if hidden % heads:
        keys.clash("hidden_size", f"not divisible by num_attention_heads {heads}")
    if keys.integer("word_embed_proj_dim", hidden) != hidden:
        raise NotNative(f"{keys.where}: the embeddings are projected (word_embed_proj_dim)")
    if not keys.flag("layer_norm_elementwise_affine", True):
        raise NotNative(f"{keys.where}: the layer norms have no scales")
    before = keys.flag("do_layer_norm_before", True)
    unnormed = keys.flag("_remove_final_layer_norm", False)
    bias = keys.flag("enable_bias", True)
    return CausalTransformer(
        vocab_size=keys.integer("vocab_size", 50272),
        emb_features=hidden,
        num_layers=keys.integer("num_hidden_layers", 12),
        num_heads=heads,
        mlp_features=keys.integer("ffn_dim", 3072),
        max_seq_len=keys.integer("max_position_embeddings", 2048),
        norm="layer",
        norm_places="before" if before else "residual",
        norm_epsilon=1e-5,
        final_norm=before and not unnormed,
        mlp="plain",
        activation=read_activation(keys, "activation_function", "relu"),
        positions="learned",
        position_offset=OFFSET,
        tied_head=keys.flag("tie_word_embeddings", True),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )


def rows(model: CausalTransformer) -> tuple[Row, ...]:
    """Return OPT's tensors (theirs) and dew's leaves (ours)."""
    heads = model.num_heads
    maps = [
        ("self_attn.q_proj", "attention/query", split_heads(heads), split_bias(heads)),
        ("self_attn.k_proj", "attention/key", split_heads(heads), split_bias(heads)),
        ("self_attn.v_proj", "attention/value", split_heads(heads), split_bias(heads)),
        ("self_attn.out_proj", "attention/out", merge_heads(heads), None),
        ("fc1", "mlp/up", TRANSPOSE, None),
        ("fc2", "mlp/down", TRANSPOSE, None),
    ]
    table = [
        Row("model.decoder.embed_tokens.weight", "embed/table"),
        Row("model.decoder.embed_positions.weight", "position_embed/table"),
        *_norm(f"{LAYER}self_attn_layer_norm", "layers/attention_norm"),
        *_norm(f"{LAYER}final_layer_norm", "layers/mlp_norm"),
    ]
    for theirs, ours, move, bias_move in maps:
        table.append(Row(f"{LAYER}{theirs}.weight", f"layers/{ours}/kernel", move))
        if model.qkv_bias:
            moved = {} if bias_move is None else {"move": bias_move}
            table.append(Row(f"{LAYER}{theirs}.bias", f"layers/{ours}/bias", **moved))
    if model.final_norm:
        table += _norm("model.decoder.final_layer_norm", "final_norm")
    if not model.tied_head:
        table.append(Row("lm_head.weight", "head/table"))
    return tuple(table)


def _norm(theirs: str, ours: str) -> list[Row]:
    return [Row(f"{theirs}.weight", f"{ours}/scale"), Row(f"{theirs}.bias", f"{ours}/bias")]


FAMILY = Family(
    model_type="opt",
    architectures=("OPTForCausalLM",),
    model=model,
    rows=rows,
    base_prefix="model.",
    embedding="model.decoder.embed_tokens.weight",
    head="lm_head.weight",
    tied_default=True,
    harmless=frozenset(HARMLESS.split()),
)
"""The family that `model_type: opt` names."""
