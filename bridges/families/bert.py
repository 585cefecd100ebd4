"""BERT: learned positions and segments, norms behind each residual sum."""

from __future__ import annotations

from bridges.config import Keys, read_activation
from bridges.family import Family
from bridges.table import Row
from bridges.text_encoders import (
    HARMLESS,
    IGNORED,
    OLD_NAMES,
    architectures,
    bert_rows,
    head_rows,
    label_count,
    read_sizes,
    refuse_decoders,
    token_heads,
)
from dew.nn.backbones.text_encoder import TextEncoder
from dew.nn.heads import HeadSpec

DECODER = "cls.predictions.decoder.weight"
NAMES = {
    "masked": {
        "dense": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "bias": "cls.predictions.bias",
    },
    "sequence": {"dense": "bert.pooler.dense", "out": "classifier"},
    "token": {"out": "classifier"},
    "span": {"out": "qa_outputs"},
}


def model(keys: Keys) -> TextEncoder:
    """Return the model that a BERT config describes; defaults are `BertConfig`'s."""
    refuse_decoders(keys)
    sizes = read_sizes(keys, vocab_size=30522)
    hidden, epsilon = sizes["emb_features"], keys.number("layer_norm_eps", 1e-12, low=0.0)
    act = read_activation(keys, "hidden_act", "gelu")
    return TextEncoder(
        **sizes,
        norm_epsilon=epsilon,
        activation=act,
        segments=keys.integer("type_vocab_size", 2),
        pooler=True,
        heads=(
            HeadSpec("masked", sizes["vocab_size"], hidden, act, "layer", epsilon),
            HeadSpec("sequence", label_count(keys), hidden, "tanh"),
            *token_heads(keys),
        ),
    )


def rows(model: TextEncoder) -> tuple[Row, ...]:
    """Return BERT's tensors (theirs) and dew's leaves (ours)."""
    return (*bert_rows(model, "bert."), *head_rows(model, NAMES, DECODER))


FAMILY = Family(
    model_type="bert",
    architectures=("BertModel",),
    model=model,
    rows=rows,
    base_prefix="bert.",
    embedding="bert.embeddings.word_embeddings.weight",
    head=DECODER,
    tied_default=True,
    heads=architectures("Bert"),
    head_names=(r"cls\..*", r"classifier\..*", r"qa_outputs\..*", r"bert\.pooler\..*"),
    parts={"pooler": r"bert\.pooler\..*"},
    old_names=OLD_NAMES,
    harmless=HARMLESS,
    ignored=IGNORED,
)
"""The family that `model_type: bert` names."""
