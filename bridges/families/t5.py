"""T5, v1.1, Flan and mT5's kin: distances instead of positions, RMS norms before each branch."""

from __future__ import annotations

from bridges.config import Keys
from bridges.family import Family
from bridges.moves import TRANSPOSE, merge_heads, split_heads
from bridges.table import Row
from dew.errors import nearest
from dew.nn.activations import ACTIVATIONS
from dew.nn.backbones.encoder_decoder import EncoderDecoder

HARMLESS = """
dropout_rate classifier_dropout initializer_factor dense_act_fn is_gated_act n_positions
output_past
"""


def model(keys: Keys) -> EncoderDecoder:
    """Return the model that a T5 config describes; defaults are `T5Config`'s."""
    hidden, heads = keys.integer("d_model", 512), keys.integer("num_heads", 8)
    layers, inner = keys.integer("num_layers", 6), keys.integer("d_ff", 2048)
    mlp, activation = _feed_forward(keys)
    keys.only("is_decoder", False)
    tied = keys.flag("tie_word_embeddings", True)
    # transformers 5 ties in any case and keeps the old meaning of the flag under its own name.
    scaled = keys.flag("scale_decoder_outputs", tied)
    return EncoderDecoder(
        vocab_size=keys.integer("vocab_size", 32128),
        emb_features=hidden,
        num_layers=layers,
        decoder_layers=keys.integer("num_decoder_layers", layers),
        num_heads=heads,
        decoder_heads=heads,
        head_features=keys.integer("d_kv", 64),
        mlp_features=inner,
        decoder_mlp_features=inner,
        max_seq_len=512,
        norm="rms",
        norm_epsilon=keys.number("layer_norm_epsilon", 1e-6, low=0.0),
        norm_places="before",
        final_norm=True,
        mlp=mlp,
        activation=activation,
        positions="relative",
        buckets=keys.integer("relative_attention_num_buckets", 32, low=4),
        farthest=keys.integer("relative_attention_max_distance", 128, low=2),
        score_scale=1.0,
        logit_scale=hidden**-0.5 if scaled else 1.0,
        tied_head=True,
        bias=False,
    )


def _feed_forward(keys: Keys) -> tuple[str, str]:
    """Return the MLP's kind and its activation."""
    said = keys.text("feed_forward_proj", "relu")
    gated = said.startswith("gated-")
    name = said.removeprefix("gated-")
    if name not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        keys.refuse(
            "feed_forward_proj",
            f"unknown activation{nearest(name, ACTIVATIONS) or '.'} Known, after gated- or alone: "
            f"{known}",
        )
    if said == "gated-gelu":
        name = "gelu_new"  # as T5's first code had it
    return ("gated" if gated else "plain"), name


def rows(model: EncoderDecoder) -> tuple[Row, ...]:
    """Return T5's tensors (theirs) and dew's leaves (ours)."""
    table = [Row("shared.weight", "embed/table")]
    for side, heads, mlp in (("encoder", model.num_heads, 1), ("decoder", model.decoder_heads, 2)):
        layer = f"{side}.block.{{layer}}.layer."
        parts = [("0.SelfAttention", "attention")]
        parts += [("1.EncDecAttention", "cross")] if side == "decoder" else []
        for theirs, ours in parts:
            table += [
                Row(f"{layer}{theirs}.{name}.weight", f"{side}_blocks/{ours}/{leaf}/kernel", move)
                for name, leaf, move in (
                    ("q", "query", split_heads(heads)),
                    ("k", "key", split_heads(heads)),
                    ("v", "value", split_heads(heads)),
                    ("o", "out", merge_heads(heads)),
                )
            ]
            norm = f"{layer}{theirs[0]}.layer_norm.weight"
            table.append(Row(norm, f"{side}_blocks/{ours}_norm/scale"))
        names = {"wo": "down"}
        names |= {"wi_0": "gate", "wi_1": "up"} if model.mlp == "gated" else {"wi": "up"}
        table += [
            Row(f"{layer}{mlp}.DenseReluDense.{theirs}.weight", _mlp(side, ours), TRANSPOSE)
            for theirs, ours in names.items()
        ]
        table += [
            Row(f"{layer}{mlp}.layer_norm.weight", f"{side}_blocks/mlp_norm/scale"),
            Row(f"{side}.final_layer_norm.weight", f"{side}_final_norm/scale"),
            Row(
                f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                f"{side}_distance/table",
            ),
        ]
    if model.has_own_table:
        table.append(Row("lm_head.weight", "output/table"))
    return tuple(table)


def _mlp(side: str, leaf: str) -> str:
    return f"{side}_blocks/mlp/{leaf}/kernel"


FAMILY = Family(
    model_type="t5",
    architectures=("T5ForConditionalGeneration",),
    model=model,
    rows=rows,
    base_prefix="",
    embedding="shared.weight",
    head="lm_head.weight",
    tied_default=True,
    harmless=frozenset(HARMLESS.split()),
    ignored=(
        r"(encoder|decoder)\.embed_tokens\.weight",
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
    answers=True,
)
"""The family that `model_type: t5` names."""
