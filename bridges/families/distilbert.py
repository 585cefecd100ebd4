"""DistilBERT: BERT without segments and pooler, under names of its own."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.family import Family
from bridges.table import Row
from bridges.text_encoders import (
    HARMLESS,
    IGNORED,
    OLD_NAMES,
    architectures,
    head_rows,
    label_count,
    layer_rows,
    norm_rows,
    read_sizes,
    refuse_decoders,
    token_heads,
)
from dew.nn.backbones.text_encoder import TextEncoder
from dew.nn.heads import HeadSpec

EPSILON = 1e-12
DECODER = "vocab_projector.weight"
KEYS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
}
LAYER_NAMES = {
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "out": "attention.out_lin",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
}
LAYER_NORMS = {"attention_norm": "sa_layer_norm", "mlp_norm": "output_layer_norm"}
NAMES = {
    "masked": {
        "dense": "vocab_transform",
        "norm": "vocab_layer_norm",
        "bias": "vocab_projector.bias",
    },
    "sequence": {"dense": "pre_classifier", "out": "classifier"},
    "token": {"out": "classifier"},
    "span": {"out": "qa_outputs"},
}
OWN_HARMLESS = """
dropout attention_dropout qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_weights_
"""


def model(keys: Keys) -> TextEncoder:
    """Return the model that a DistilBERT config describes; defaults are `DistilBertConfig`'s."""
    refuse_decoders(keys)
    sizes = read_sizes(keys, KEYS, vocab_size=30522, num_hidden_layers=6)
    hidden, act = sizes["emb_features"], read_activation(keys, "activation", "gelu")
    return TextEncoder(
        **sizes,
        norm_epsilon=EPSILON,
        activation=act,
        heads=(
            HeadSpec("masked", sizes["vocab_size"], hidden, act, "layer", EPSILON),
            HeadSpec("sequence", label_count(keys), hidden, "relu"),
            *token_heads(keys),
        ),
    )


def rows(model: TextEncoder) -> tuple[Row, ...]:
    """Return DistilBERT's tensors (theirs) and dew's leaves (ours)."""
    base = "distilbert."
    layer = f"{base}transformer.layer.{{layer}}."
    return (
        Row(f"{base}embeddings.word_embeddings.weight", "embed/table"),
        Row(f"{base}embeddings.position_embeddings.weight", "position_embed/table"),
        *norm_rows(f"{base}embeddings.LayerNorm", "embed_norm"),
        *layer_rows(layer, model.num_heads, LAYER_NAMES, LAYER_NORMS),
        *head_rows(model, NAMES, DECODER),
    )


FAMILY = Family(
    model_type="distilbert",
    architectures=("DistilBertModel",),
    model=model,
    rows=rows,
    base_prefix="distilbert.",
    embedding="distilbert.embeddings.word_embeddings.weight",
    head=DECODER,
    tied_default=True,
    heads=architectures("DistilBert"),
    head_names=(r"vocab_.*", r"pre_classifier\..*", r"classifier\..*", r"qa_outputs\..*"),
    old_names=OLD_NAMES,
    harmless=HARMLESS | frozenset(OWN_HARMLESS.split()),
    ignored=IGNORED,
)
"""The family that `model_type: distilbert` names."""
