"""MPNet: RoBERTa without segments, with biases by distance that all layers add to the scores."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.families.roberta import DECODER, HEAD_NAMES, NAMES
from bridges.family import Family
from bridges.table import Row
from bridges.text_encoders import (
    BERT_NAMES,
    HARMLESS,
    IGNORED,
    OLD_NAMES,
    architectures,
    head_rows,
    label_count,
    layer_rows,
    map_rows,
    norm_rows,
    read_sizes,
    refuse_decoders,
    token_heads,
    uncounted,
)
from dew.nn.backbones.text_encoder import BUCKETS, TextEncoder
from dew.nn.heads import HeadSpec

PADDING = 1
"""The id that takes no position, whatever the config says."""
LAYER_NAMES = BERT_NAMES | {
    "query": "attention.attn.q",
    "key": "attention.attn.k",
    "value": "attention.attn.v",
    "out": "attention.attn.o",
}
LAYER_NORMS = {"attention_norm": "attention.LayerNorm", "mlp_norm": "output.LayerNorm"}


def model(keys: Keys) -> TextEncoder:
    """Return the model that an MPNet config describes; defaults are `MPNetConfig`'s."""
    refuse_decoders(keys)
    sizes = read_sizes(keys, vocab_size=30527)
    hidden, epsilon = sizes["emb_features"], keys.number("layer_norm_eps", 1e-12, low=0.0)
    return TextEncoder(
        **uncounted(keys, sizes, PADDING),
        norm_epsilon=epsilon,
        activation=read_activation(keys, "hidden_act", "gelu"),
        padding_id=PADDING,
        # The buckets are 32 whatever the table holds; further rows are never looked up.
        bias_rows=keys.integer("relative_attention_num_buckets", BUCKETS, low=BUCKETS),
        pooler=True,
        heads=(
            HeadSpec("masked", sizes["vocab_size"], hidden, "gelu", "layer", epsilon),
            HeadSpec("sequence", label_count(keys), hidden, "tanh"),
            *token_heads(keys),
        ),
    )


def rows(model: TextEncoder) -> tuple[Row, ...]:
    """Return MPNet's tensors (theirs) and dew's leaves (ours)."""
    base = "mpnet."
    table = [
        Row(f"{base}embeddings.word_embeddings.weight", "embed/table"),
        Row(f"{base}embeddings.position_embeddings.weight", "position_embed/table"),
        *norm_rows(f"{base}embeddings.LayerNorm", "embed_norm"),
        Row(f"{base}encoder.relative_attention_bias.weight", "distances/table"),
        *layer_rows(f"{base}encoder.layer.{{layer}}.", model.num_heads, LAYER_NAMES, LAYER_NORMS),
        *head_rows(model, NAMES, DECODER),
    ]
    if model.has_pooler:
        table += map_rows(f"{base}pooler.dense", "pool")
    return tuple(table)


FAMILY = Family(
    model_type="mpnet",
    architectures=("MPNetModel",),
    model=model,
    rows=rows,
    base_prefix="mpnet.",
    embedding="mpnet.embeddings.word_embeddings.weight",
    head=DECODER,
    tied_default=True,
    heads=architectures("MPNet"),
    head_names=(*HEAD_NAMES, r"mpnet\.pooler\..*"),
    parts={"pooler": r"mpnet\.pooler\..*"},
    old_names=OLD_NAMES,
    harmless=HARMLESS,
    ignored=IGNORED,
)
"""The family that `model_type: mpnet` names."""
