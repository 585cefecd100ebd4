"""BART: learned positions from the third row on, norms on the residual stream, one embedding."""

from __future__ import annotations

from typing import Any

from bridges.config import Keys, read_activation
from bridges.family import Family
from bridges.moves import TRANSPOSE, merge_heads, split_bias, split_heads
from bridges.table import Row
from bridges.text_encoders import norm_rows
from dew.nn.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderBase

HARMLESS = """
attention_dropout activation_dropout dropout classifier_dropout classif_dropout init_std
encoder_layerdrop decoder_layerdrop num_hidden_layers add_bias_logits normalize_embedding
normalize_before static_position_embeddings extra_pos_embeddings add_final_layer_norm
save_step output_past gradient_checkpointing force_bos_token_to_be_generated
decoder_vocab_size share_encoder_decoder_embeddings
"""
OFFSET = 2


def read_sizes(keys: Keys, **defaults: int) -> dict[str, Any]:
    """Return the fields of a model that are sizes, by BART's keys.

    Args:
        keys: the config.
        **defaults: what its config class takes where it is not BART large's, by the keys.
    """
    sizes = {
        field: keys.integer(key, defaults.get(key, default))
        for field, (key, default) in SIZES.items()
    }
    for field in ("num_heads", "decoder_heads"):
        if sizes["emb_features"] % sizes[field]:
            keys.clash("d_model", f"not divisible by {SIZES[field][0]} {sizes[field]}")
    keys.only("is_decoder", False)
    return sizes


SIZES = {
    "vocab_size": ("vocab_size", 50265),
    "emb_features": ("d_model", 1024),
    "num_layers": ("encoder_layers", 12),
    "decoder_layers": ("decoder_layers", 12),
    "num_heads": ("encoder_attention_heads", 16),
    "decoder_heads": ("decoder_attention_heads", 16),
    "mlp_features": ("encoder_ffn_dim", 4096),
    "decoder_mlp_features": ("decoder_ffn_dim", 4096),
}
"""dew's fields to BART's keys for them, and BART large's sizes."""


def read_pair(keys: Keys, **more: Any) -> EncoderDecoder:
    """Return the model of a config with BART's keys.

    Args:
        keys: the config.
        **more: fields of the model, which stand over what is read here.
    """
    sizes = read_sizes(keys)
    hidden = sizes["emb_features"]
    fields = {
        **sizes,
        "max_seq_len": keys.integer("max_position_embeddings", 1024),
        "activation": read_activation(keys, "activation_function", "gelu"),
        "embed_scale": hidden**0.5 if keys.flag("scale_embedding", False) else 1.0,
        "tied_head": keys.flag("tie_word_embeddings", True),
        "head_bias": True,
    }
    return EncoderDecoder(**(fields | more))


def model(keys: Keys) -> EncoderDecoder:
    """Return the model that a BART config describes; defaults are `BartConfig`'s."""
    keys.only("normalize_before", False)
    keys.only("add_final_layer_norm", False)
    return read_pair(keys, positions="learned", position_offset=OFFSET, embed_norm=True)


def rows(model: EncoderDecoder) -> tuple[Row, ...]:
    """Return BART's tensors (theirs) and dew's leaves (ours)."""
    table = [Row("model.shared.weight", "embed/table"), Row("final_logits_bias", "head_bias")]
    for side in ("encoder", "decoder"):
        table += layer_rows(model, side)
        if model.positions == "learned":
            name = f"model.{side}.embed_positions.weight"
            table.append(Row(name, f"{side}_position_embed/table"))
        if model.embed_norm:
            table += norm_rows(f"model.{side}.layernorm_embedding", f"{side}_embed_norm")
    if model.has_own_table:
        table.append(Row("lm_head.weight", "output/table"))
    return tuple(table)


def layer_rows(model: EncoderDecoderBase, side: str) -> list[Row]:
    """Return the rows of the layers of the "encoder" or the "decoder"."""
    layer, ours = f"model.{side}.layers.{{layer}}.", f"{side}_blocks/"
    heads = model.num_heads if side == "encoder" else model.decoder_heads
    found = []
    attentions = [("self_attn", "attention")]
    attentions += [("encoder_attn", "cross")] if side == "decoder" else []
    for theirs, leaf in attentions:
        for name, part in (("q", "query"), ("k", "key"), ("v", "value")):
            start, end = f"{layer}{theirs}.{name}_proj", f"{ours}{leaf}/{part}"
            found.append(Row(f"{start}.weight", f"{end}/kernel", split_heads(heads)))
            if model.spec(side).maps_with_bias(part):
                found.append(Row(f"{start}.bias", f"{end}/bias", split_bias(heads)))
        out = f"{layer}{theirs}.out_proj"
        found += [
            Row(f"{out}.weight", f"{ours}{leaf}/out/kernel", merge_heads(heads)),
            Row(f"{out}.bias", f"{ours}{leaf}/out/bias"),
            *norm_rows(f"{layer}{theirs}_layer_norm", f"{ours}{leaf}_norm"),
        ]
    for theirs, leaf in (("fc1", "mlp/up"), ("fc2", "mlp/down")):
        found += [
            Row(f"{layer}{theirs}.weight", f"{ours}{leaf}/kernel", TRANSPOSE),
            Row(f"{layer}{theirs}.bias", f"{ours}{leaf}/bias"),
        ]
    return found + norm_rows(f"{layer}final_layer_norm", f"{ours}mlp_norm")


FAMILY = Family(
    model_type="bart",
    architectures=("BartForConditionalGeneration",),
    model=model,
    rows=rows,
    base_prefix="model.",
    embedding="model.shared.weight",
    head="lm_head.weight",
    tied_default=True,
    harmless=frozenset(HARMLESS.split()),
    head_names=(r"final_logits_bias",),
    ignored=(r"model\.(encoder|decoder)\.embed_tokens\.weight",),
    answers=True,
)
"""The family that `model_type: bart` names."""
