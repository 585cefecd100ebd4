"""ELECTRA: BERT whose embeddings may be narrower than its layers, without a pooler."""

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
    map_rows,
    read_sizes,
    refuse_decoders,
    token_heads,
)
from dew.nn.backbones.text_encoder import TextEncoder
from dew.nn.heads import HeadSpec

DECODER = "generator_lm_head.weight"
NAMES = {
    "masked": {
        "dense": "generator_predictions.dense",
        "norm": "generator_predictions.LayerNorm",
        "bias": "generator_lm_head.bias",
    },
    "sequence": {"dense": "classifier.dense", "out": "classifier.out_proj"},
    "token": {"out": "classifier"},
    "span": {"out": "qa_outputs"},
    "detection": {
        "dense": "discriminator_predictions.dense",
        "out": "discriminator_predictions.dense_prediction",
    },
}
OWN_HARMLESS = "summary_type summary_use_proj summary_activation summary_last_dropout"


def model(keys: Keys) -> TextEncoder:
    """Return the model that an ELECTRA config describes; defaults are `ElectraConfig`'s."""
    refuse_decoders(keys)
    sizes = read_sizes(
        keys, vocab_size=30522, hidden_size=256, num_attention_heads=4, intermediate_size=1024
    )
    width = keys.integer("embedding_size", 128)
    hidden, epsilon = sizes["emb_features"], keys.number("layer_norm_eps", 1e-12, low=0.0)
    act = read_activation(keys, "hidden_act", "gelu")
    return TextEncoder(
        **sizes,
        embedding_features=width,
        norm_epsilon=epsilon,
        activation=act,
        segments=keys.integer("type_vocab_size", 2),
        heads=(
            HeadSpec("masked", sizes["vocab_size"], width, "gelu", "layer", epsilon),
            HeadSpec("sequence", label_count(keys), hidden, "gelu"),
            *token_heads(keys),
            HeadSpec("detection", 1, hidden, act),
        ),
    )


def rows(model: TextEncoder) -> tuple[Row, ...]:
    """Return ELECTRA's tensors (theirs) and dew's leaves (ours)."""
    table = [*bert_rows(model, "electra."), *head_rows(model, NAMES, DECODER)]
    if model.embedding_features != model.emb_features:
        table += map_rows("electra.embeddings_project", "embed_map")
    return tuple(table)


FAMILY = Family(
    model_type="electra",
    architectures=("ElectraModel",),
    model=model,
    rows=rows,
    base_prefix="electra.",
    embedding="electra.embeddings.word_embeddings.weight",
    head=DECODER,
    tied_default=True,
    heads=architectures("Electra", ForPreTraining="detection"),
    head_names=(
        r"generator_.*",
        r"classifier\..*",
        r"qa_outputs\..*",
        r"discriminator_predictions\..*",
    ),
    old_names=OLD_NAMES,
    harmless=HARMLESS | frozenset(OWN_HARMLESS.split()),
    ignored=IGNORED,
)
"""The family that `model_type: electra` names."""
