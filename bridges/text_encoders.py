"""What families of text encoders share: common config keys, and rows of layers and heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridges.config import Keys
from bridges.family import NotNative
from bridges.moves import KEEP, TRANSPOSE, Move, merge_heads, split_bias, split_heads
from bridges.table import Row
from dew.errors import shown
from dew.nn.heads import HeadSpec

_HARMLESS = """
hidden_dropout_prob attention_probs_dropout_prob classifier_dropout output_past directionality
pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
language name
"""
HARMLESS = frozenset(_HARMLESS.split())
"""Training-time dropout, and what old configs carried without any effect."""


def refuse_decoders(keys: Keys) -> None:
    """Refuse a config that makes a decoder of an encoder, or places tokens otherwise.

    Raises:
        NotNative: relative position embeddings, or a masked head with a table of its own.
    """
    keys.only("is_decoder", False)
    keys.only("add_cross_attention", False)
    kind = keys.text("position_embedding_type", "absolute")
    if kind != "absolute":
        raise NotNative(f"{keys.where}: position_embedding_type is {shown(kind)}")
    named = keys.values.get("architectures")
    masked = any(str(name).endswith("ForMaskedLM") for name in named or ())
    if not keys.flag("tie_word_embeddings", True) and masked:
        raise NotNative(f"{keys.where}: the masked head has a table of its own")


def read_sizes(
    keys: Keys, names: Mapping[str, str] | None = None, **defaults: int
) -> dict[str, Any]:
    """Return the model's fields that are sizes.

    Args:
        keys: the config.
        names: what the family calls some of BERT's keys.
        **defaults: what its config class takes where it is not BERT base's, by BERT's keys.
    """
    names = names or {}
    sizes = {
        field: keys.integer(names.get(key, key), defaults.get(key, default))
        for field, (key, default) in SIZES.items()
    }
    if sizes["emb_features"] % sizes["num_heads"]:
        heads = names.get("num_attention_heads", "num_attention_heads")
        hidden = names.get("hidden_size", "hidden_size")
        keys.clash(hidden, f"not divisible by {heads} {sizes['num_heads']}")
    return sizes


SIZES = {
    "vocab_size": ("vocab_size", 30522),
    "emb_features": ("hidden_size", 768),
    "num_layers": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "mlp_features": ("intermediate_size", 3072),
    "max_seq_len": ("max_position_embeddings", 512),
}
"""dew's fields to BERT's keys for them, and BERT base's sizes."""


def uncounted(keys: Keys, sizes: Mapping[str, int], padding: int) -> dict[str, Any]:
    """Return the sizes with the tokens that fit where positions start above the padding's id."""
    rows = sizes["max_seq_len"]
    if rows < padding + 2:
        keys.clash("max_position_embeddings", f"no row is left above pad_token_id {padding}")
    return {**sizes, "max_seq_len": rows - padding - 1}


def label_count(keys: Keys) -> int:
    """Return how many labels a classifier has: those of `id2label`, else `num_labels`, else 2."""
    labels = keys.values.get("id2label")
    if labels is None:
        return keys.integer("num_labels", 2)
    if type(labels) is not dict or not labels:
        keys.refuse("id2label", "expected an object that names each label")
    return len(labels)


def token_heads(keys: Keys) -> tuple[HeadSpec, HeadSpec]:
    """Return the two heads that most families share: one map of each token's state."""
    labels = label_count(keys)
    return HeadSpec("token", labels), HeadSpec("span", labels)


def layer_rows(
    layer: str,
    heads: int,
    names: Mapping[str, str],
    norms: Mapping[str, str],
) -> list[Row]:
    """Return the rows of the layers' maps, with their biases, and of their norms.

    Args:
        layer: what the names of a layer's tensors start with, with `{layer}`.
        heads: how many.
        names: dew's "query", "key", "value", "out", "up" and "down" to their names for them.
        norms: dew's norms to theirs.
    """
    split: tuple[Move, Move] = split_heads(heads), split_bias(heads)
    moves = {
        "query": ("attention/query", *split),
        "key": ("attention/key", *split),
        "value": ("attention/value", *split),
        "out": ("attention/out", merge_heads(heads), KEEP),
        "up": ("mlp/up", TRANSPOSE, KEEP),
        "down": ("mlp/down", TRANSPOSE, KEEP),
    }
    rows = []
    for name, (ours, kernel, bias) in moves.items():
        rows.append(Row(f"{layer}{names[name]}.weight", f"layers/{ours}/kernel", kernel))
        rows.append(Row(f"{layer}{names[name]}.bias", f"layers/{ours}/bias", bias))
    for ours, theirs in norms.items():
        rows += norm_rows(f"{layer}{theirs}", f"layers/{ours}")
    return rows


BERT_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}
BERT_NORMS = {
    "attention_norm": "attention.output.LayerNorm",
    "mlp_norm": "output.LayerNorm",
}
"""The names of a layer that BERT began."""


def bert_rows(model: Any, base: str) -> list[Row]:
    """Return the rows of the base model by BERT's names, `base` being what they start with."""
    rows = [
        Row(f"{base}embeddings.word_embeddings.weight", "embed/table"),
        Row(f"{base}embeddings.position_embeddings.weight", "position_embed/table"),
        *norm_rows(f"{base}embeddings.LayerNorm", "embed_norm"),
        *layer_rows(f"{base}encoder.layer.{{layer}}.", model.num_heads, BERT_NAMES, BERT_NORMS),
    ]
    if model.segments:
        rows.append(Row(f"{base}embeddings.token_type_embeddings.weight", "segment_embed/table"))
    if model.has_pooler:
        rows += map_rows(f"{base}pooler.dense", "pool")
    return rows


def head_rows(model: Any, names: Mapping[str, Mapping[str, str]], decoder: str = "") -> list[Row]:
    """Return the rows of the head in use.

    Args:
        model: the model; without a head there are none.
        names: each kind of head to what its "dense", "norm" and "out" maps are called, and to the
            full name of its "bias" where it is masked.
        decoder: the tensor of a masked head's own table.
    """
    spec = model.head_spec
    if spec is None:
        return []
    theirs, rows = names[spec.kind], []
    if spec.features is not None:
        rows += map_rows(theirs["dense"], "top/dense", bias=spec.dense_bias)
        if spec.norm:
            rows += norm_rows(theirs["norm"], "top/norm", bias=spec.norm == "layer")
    if spec.kind != "masked":
        return rows + map_rows(theirs["out"], "top/out", bias=spec.out_bias)
    if not model.tied_head:
        rows.append(Row(decoder, "top/table"))
    return [*rows, Row(theirs["bias"], "top/bias")] if spec.out_bias else rows


def map_rows(theirs: str, ours: str, *, bias: bool = True) -> list[Row]:
    """Return the rows of a map that is no layer's."""
    rows = [Row(f"{theirs}.weight", f"{ours}/kernel", TRANSPOSE)]
    return [*rows, Row(f"{theirs}.bias", f"{ours}/bias")] if bias else rows


def norm_rows(theirs: str, ours: str, *, bias: bool = True) -> list[Row]:
    """Return the rows of a norm."""
    rows = [Row(f"{theirs}.weight", f"{ours}/scale")]
    return [*rows, Row(f"{theirs}.bias", f"{ours}/bias")] if bias else rows


OLD_NAMES = {
    r"(.*\.|)LayerNorm\.gamma": r"\1LayerNorm.weight",
    r"(.*\.|)LayerNorm\.beta": r"\1LayerNorm.bias",
    r"(.*predictions|lm_head)\.decoder\.bias": r"\1.bias",
}
"""How TensorFlow's conversions called a norm's tensors, and the copy of a masked head's bias."""
IGNORED = (r"(.*\.)?embeddings\.(position_ids|token_type_ids)",)
"""Buffers that count, which older checkpoints stored."""


def architectures(prefix: str, **more: str) -> dict[str, str]:
    """Return the classes of transformers that start with `prefix`, and the head of each."""
    kinds = {
        "Model": "",
        "ForMaskedLM": "masked",
        "ForSequenceClassification": "sequence",
        "ForTokenClassification": "token",
        "ForQuestionAnswering": "span",
    }
    return {f"{prefix}{name}": head for name, head in (kinds | more).items()}
