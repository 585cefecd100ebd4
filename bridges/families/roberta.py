"""RoBERTa: BERT whose positions leave out padding, with heads of its own."""

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
    uncounted,
)
from dew.nn.backbones.text_encoder import TextEncoder
from dew.nn.heads import HeadSpec

DECODER = "lm_head.decoder.weight"
NAMES = {
    "masked": {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "bias": "lm_head.bias"},
    "sequence": {"dense": "classifier.dense", "out": "classifier.out_proj"},
    "token": {"out": "classifier"},
    "span": {"out": "qa_outputs"},
}
HEAD_NAMES = (r"lm_head\..*", r"classifier\..*", r"qa_outputs\..*")


def read_roberta(keys: Keys, vocab_size: int) -> TextEncoder:
    """Return the model that a RoBERTa config describes.

    Args:
        keys: the config.
        vocab_size: the config class's own.
    """
    refuse_decoders(keys)
    sizes = read_sizes(keys, vocab_size=vocab_size)
    padding = keys.integer("pad_token_id", 1, low=0)
    hidden, epsilon = sizes["emb_features"], keys.number("layer_norm_eps", 1e-12, low=0.0)
    return TextEncoder(
        **uncounted(keys, sizes, padding),
        norm_epsilon=epsilon,
        activation=read_activation(keys, "hidden_act", "gelu"),
        segments=keys.integer("type_vocab_size", 2),
        padding_id=padding,
        pooler=True,
        heads=(
            HeadSpec("masked", sizes["vocab_size"], hidden, "gelu", "layer", epsilon),
            HeadSpec("sequence", label_count(keys), hidden, "tanh"),
            *token_heads(keys),
        ),
    )


def model(keys: Keys) -> TextEncoder:
    """Return the model that a RoBERTa config describes; defaults are `RobertaConfig`'s."""
    return read_roberta(keys, vocab_size=50265)


def rows(model: TextEncoder) -> tuple[Row, ...]:
    """Return RoBERTa's tensors (theirs) and dew's leaves (ours)."""
    return (*bert_rows(model, "roberta."), *head_rows(model, NAMES, DECODER))


FAMILY = Family(
    model_type="roberta",
    architectures=("RobertaModel",),
    model=model,
    rows=rows,
    base_prefix="roberta.",
    embedding="roberta.embeddings.word_embeddings.weight",
    head=DECODER,
    tied_default=True,
    heads=architectures("Roberta"),
    head_names=(*HEAD_NAMES, r"roberta\.pooler\..*"),
    parts={"pooler": r"roberta\.pooler\..*"},
    old_names=OLD_NAMES,
    harmless=HARMLESS,
    ignored=IGNORED,
)
"""The family that `model_type: roberta` names."""
