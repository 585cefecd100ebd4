"""GPT-2: learned positions, layer norms, fused query-key-value, a plain MLP, tied head."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.family import Family
from bridges.moves import Move, merge_rows, split_bias, split_qkv
from bridges.table import Row
from dew.nn.backbones.causal_transformer import CausalTransformer

LAYER = "transformer.h.{layer}."
HARMLESS = """
attn_pdrop embd_pdrop resid_pdrop n_ctx summary_type summary_use_proj summary_activation
summary_proj_to_labels summary_first_dropout
"""
QKV = ("query", "key", "value")


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a GPT-2 config describes; defaults are `GPT2Config`'s."""
    hidden, heads = keys.integer("n_embd", 768), keys.integer("n_head", 12)
    if hidden % heads:
        keys.clash("n_embd", f"not divisible by n_head {heads}")
    keys.only("scale_attn_weights", True)
    keys.only("scale_attn_by_inverse_layer_idx", False)
    # Upcasting changes half precision only, and dew's softmax is always float32.
    keys.only("reorder_and_upcast_attn", False)
    keys.only("add_cross_attention", False)
    keys.only("is_encoder_decoder", False)
    return CausalTransformer(
        vocab_size=keys.integer("vocab_size", 50257),
        emb_features=hidden,
        num_layers=keys.integer("n_layer", 12),
        num_heads=heads,
        mlp_features=keys.integer("n_inner", 4 * hidden),
        max_seq_len=keys.integer("n_positions", 1024),
        norm="layer",
        norm_epsilon=keys.number("layer_norm_epsilon", 1e-5, low=0.0),
        mlp="plain",
        activation=read_activation(keys, "activation_function", "gelu_new"),
        positions="learned",
        tied_head=keys.flag("tie_word_embeddings", True),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
    )


def rows(model: CausalTransformer) -> tuple[Row, ...]:
    """Return GPT-2's tensors (theirs) and dew's leaves (ours).

    Its Conv1D kernels lie as [inputs, outputs] already, so that nothing here is transposed.
    """
    heads = model.num_heads
    # The bias of the fused projection [3 * heads * size] is cut along its only axis.
    bias = Move(split_bias(heads).into, split_bias(heads).out, axis=0)
    table = [
        Row("transformer.wte.weight", "embed/table"),
        Row("transformer.wpe.weight", "position_embed/table"),
        *_norm(f"{LAYER}ln_1", "layers/attention_norm"),
        Row(f"{LAYER}attn.c_attn.weight", _qkv("kernel"), split_qkv(heads)),
        Row(f"{LAYER}attn.c_attn.bias", _qkv("bias"), bias),
        Row(f"{LAYER}attn.c_proj.weight", "layers/attention/out/kernel", merge_rows(heads)),
        Row(f"{LAYER}attn.c_proj.bias", "layers/attention/out/bias"),
        *_norm(f"{LAYER}ln_2", "layers/mlp_norm"),
        Row(f"{LAYER}mlp.c_fc.weight", "layers/mlp/up/kernel"),
        Row(f"{LAYER}mlp.c_fc.bias", "layers/mlp/up/bias"),
        Row(f"{LAYER}mlp.c_proj.weight", "layers/mlp/down/kernel"),
        Row(f"{LAYER}mlp.c_proj.bias", "layers/mlp/down/bias"),
        *_norm("transformer.ln_f", "final_norm"),
    ]
    if not model.tied_head:
        table.append(Row("lm_head.weight", "head/table"))
    return tuple(table)


def _norm(theirs: str, ours: str) -> list[Row]:
    return [Row(f"{theirs}.weight", f"{ours}/scale"), Row(f"{theirs}.bias", f"{ours}/bias")]


def _qkv(leaf: str) -> tuple[str, ...]:
    return tuple(f"layers/attention/{name}/{leaf}" for name in QKV)


FAMILY = Family(
    model_type="gpt2",
    architectures=("GPT2LMHeadModel",),
    model=model,
    rows=rows,
    base_prefix="transformer.",
    embedding="transformer.wte.weight",
    head="lm_head.weight",
    tied_default=True,
    harmless=frozenset(HARMLESS.split()),
    conv1d=True,
    ignored=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
)
"""The family that `model_type: gpt2` names."""
