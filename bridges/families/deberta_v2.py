"""DeBERTa 2 and 3: scores that tell how far apart two tokens are."""

from __future__ import annotations

import numpy as np

from bridges.config import Keys, read_activation
from bridges.family import Family, NotNative
from bridges.moves import TRANSPOSE, Move, split_bias, split_heads
from bridges.table import Row
from bridges.text_encoders import (
    BERT_NAMES,
    BERT_NORMS,
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
from dew.errors import shown
from dew.nn.backbones.deberta import DebertaEncoder
from dew.nn.backbones.deberta_block import Distances
from dew.nn.heads import HeadSpec

BASE = "deberta."
LAYER = f"{BASE}encoder.layer.{{layer}}."
DECODER = "cls.predictions.decoder.weight"
LAYER_NAMES = BERT_NAMES | {
    "query": "attention.self.query_proj",
    "key": "attention.self.key_proj",
    "value": "attention.self.value_proj",
}
DISTANCE_MAPS = {"distance_key": "pos_key_proj", "distance_query": "pos_query_proj"}
NAMES = {
    "masked": {
        "dense": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "bias": "cls.predictions.bias",
    },
    "sequence": {"dense": "pooler.dense", "out": "classifier"},
    "token": {"out": "classifier"},
    "span": {"out": "qa_outputs"},
}
CONVOLVED = Move(
    into=lambda w: np.transpose(w, (2, 1, 0)), out=lambda k: np.transpose(k, (2, 1, 0))
)
"""A torch Conv1d [outputs, inputs, window] to dew [window, inputs, outputs]."""


def model(keys: Keys) -> DebertaEncoder:
    """Return the model that a DeBERTa config describes; defaults are `DebertaV2Config`'s."""
    refuse_decoders(keys)
    sizes = read_sizes(
        keys,
        vocab_size=128100,
        hidden_size=1536,
        num_hidden_layers=24,
        num_attention_heads=24,
        intermediate_size=6144,
    )
    _refuse_rare(keys, sizes)
    kinds = _looks(keys)
    hidden, epsilon = sizes["emb_features"], keys.number("layer_norm_eps", 1e-7, low=0.0)
    width, act = keys.integer("embedding_size", hidden), read_activation(keys, "hidden_act", "gelu")
    pooled = read_activation(keys, "pooler_hidden_act", "gelu")
    return DebertaEncoder(
        **sizes,
        norm_epsilon=epsilon,
        activation=act,
        embedding_features=width,
        segments=keys.integer("type_vocab_size", 0, low=0),
        placed=keys.flag("position_biased_input", True),
        distances=_distances(keys, kinds, sizes["max_seq_len"]),
        looks=1 + len(kinds),
        kernel=keys.integer("conv_kernel_size", 0, low=0),
        kernel_activation=read_activation(keys, "conv_act", "tanh"),
        heads=(
            HeadSpec("masked", sizes["vocab_size"], width, act, "layer", epsilon),
            HeadSpec("sequence", label_count(keys), hidden, pooled),
            *token_heads(keys),
        ),
    )


def _refuse_rare(keys: Keys, sizes: dict[str, int]) -> None:
    """Raise `NotNative` for what the encoder does not compute."""
    hidden = sizes["emb_features"]
    width = hidden // sizes["num_heads"]
    for key, plain in (("attention_head_size", width), ("pooler_hidden_size", hidden)):
        if keys.integer(key, plain) != plain:
            raise NotNative(f"{keys.where}: {key} is {shown(keys.values[key])}, not {plain}")
    groups, window = keys.integer("conv_groups", 1), keys.integer("conv_kernel_size", 0, low=0)
    if window and (groups != 1 or window % 2 == 0):
        raise NotNative(f"{keys.where}: the convolution has groups or an even window")
    named = keys.values.get("architectures") or ()
    if not keys.flag("legacy", True) and "DebertaV2ForMaskedLM" in named:
        raise NotNative(f"{keys.where}: the masked head is not the legacy one")


def _looks(keys: Keys) -> frozenset[str]:
    """Return which looks at distances there are, of "c2p" and "p2c"."""
    value = keys.values.get("pos_att_type")
    if isinstance(value, str):
        words = tuple(word.strip() for word in keys.text("pos_att_type").lower().split("|"))
    else:
        words = keys.words("pos_att_type")
    return frozenset({"c2p", "p2c"} & set(words))


def _distances(keys: Keys, kinds: frozenset[str], positions: int) -> Distances | None:
    """Return how scores depend on distances, or None where they do not."""
    farthest = keys.integer("max_relative_positions", -1, low=-(2**40))
    farthest = positions if farthest < 1 else farthest
    buckets = keys.integer("position_buckets", -1, low=-(2**40))
    shared = keys.flag("share_att_key", False)
    norms = [word.strip() for word in keys.text("norm_rel_ebd", "none").lower().split("|")]
    if not keys.flag("relative_attention", False):
        return None
    if not kinds:
        raise NotNative(f"{keys.where}: relative_attention without c2p or p2c")
    return Distances(
        keys="c2p" in kinds,
        queries="p2c" in kinds,
        shared=shared,
        span=buckets if buckets > 0 else farthest,
        buckets=buckets > 0,
        farthest=farthest,
        normed="layer_norm" in norms,
    )


def rows(model: DebertaEncoder) -> tuple[Row, ...]:
    """Return DeBERTa's tensors (theirs) and dew's leaves (ours)."""
    heads = model.num_heads
    table = [
        Row(f"{BASE}embeddings.word_embeddings.weight", "embed/table"),
        *norm_rows(f"{BASE}embeddings.LayerNorm", "embed_norm"),
        *layer_rows(LAYER, heads, LAYER_NAMES, BERT_NORMS),
        *head_rows(model, NAMES, DECODER),
    ]
    if model.placed:
        table.append(Row(f"{BASE}embeddings.position_embeddings.weight", "position_embed/table"))
    if model.segments:
        table.append(Row(f"{BASE}embeddings.token_type_embeddings.weight", "segment_embed/table"))
    if model.width != model.emb_features:
        table.append(Row(f"{BASE}embeddings.embed_proj.weight", "embed_map/kernel", TRANSPOSE))
    if model.distances is not None:
        table.append(Row(f"{BASE}encoder.rel_embeddings.weight", "distance_embed/table"))
        if model.distances.normed:
            table += norm_rows(f"{BASE}encoder.LayerNorm", "distance_norm")
    for name in model.split_maps:
        theirs, ours = f"{LAYER}attention.self.{DISTANCE_MAPS[name]}", f"layers/attention/{name}"
        table.append(Row(f"{theirs}.weight", f"{ours}/kernel", split_heads(heads)))
        table.append(Row(f"{theirs}.bias", f"{ours}/bias", split_bias(heads)))
    if model.kernel:
        table.append(Row(f"{BASE}encoder.conv.conv.weight", "convolution/kernel", CONVOLVED))
        table.append(Row(f"{BASE}encoder.conv.conv.bias", "convolution/bias"))
        table.append(Row(f"{BASE}encoder.conv.LayerNorm.weight", "convolution/norm_scale"))
        table.append(Row(f"{BASE}encoder.conv.LayerNorm.bias", "convolution/norm_bias"))
    return tuple(table)


FAMILY = Family(
    model_type="deberta-v2",
    architectures=("DebertaV2Model",),
    model=model,
    rows=rows,
    base_prefix=BASE,
    embedding=f"{BASE}embeddings.word_embeddings.weight",
    head=DECODER,
    tied_default=True,
    heads=architectures("DebertaV2"),
    head_names=(
        r"cls\..*",
        r"pooler\..*",
        r"classifier\..*",
        r"qa_outputs\..*",
        r"(lm|mask)_predictions\..*",
    ),
    old_names=OLD_NAMES,
    harmless=HARMLESS | {"pooler_dropout", "cls_dropout"},
    ignored=IGNORED,
)
"""The family that `model_type: deberta-v2` names."""
