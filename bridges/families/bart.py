"""BART: learned positions from the third row on, norms on the residual stream, one embedding."""

from __future__ import annotations

from typing import Any

from bridges.config import Keys, read_activation
from bridges.family import Family
from bridges.moves import TRANSPOSE, merge_heads, split_bias, split_heads
from bridges.table import Row
from dew.nn.backbones.encoder_decoder import EncoderDecoder

HARMLESS = """
attention_dropout activation_dropout dropout classifier_dropout classif_dropout init_std
encoder_layerdrop decoder_layerdrop num_hidden_layers add_bias_logits normalize_embedding
normalize_before static_position_embeddings extra_pos_embeddings add_final_layer_norm
save_step output_past gradient_checkpointing force_bos_token_to_be_generated
decoder_vocab_size share_encoder_decoder_embeddings
"""
OFFSET = 2


def read_pair(keys: Keys, **more: Any) -> EncoderDecoder:
    """Return the model of a config with BART's keys.

    Args:
        keys: the config.
        **more: fields of the model, which stand over what is read here.
    """
    hidden = keys.integer("d_model", 1024)
    heads = {side: keys.integer(f"{side}_attention_heads", 16) for side in ("encoder", "decoder")}
    for side, count in heads.items():
        if hidden % count:
            keys.clash("d_model", f"not divisible by {side}_attention_heads {count}")
    keys.only("is_decoder", False)
    fields = {
        "vocab_size": keys.integer("vocab_size", 50265),
        "emb_features": hidden,
        "num_layers": keys.integer("encoder_layers", 12),
        "decoder_layers": keys.integer("decoder_layers", 12),
        "num_heads": heads["encoder"],
        "decoder_heads": heads["decoder"],
        "mlp_features": keys.integer("encoder_ffn_dim", 4096),
        "decoder_mlp_features": keys.integer("decoder_ffn_dim", 4096),
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
            table += _norm(f"model.{side}.layernorm_embedding", f"{side}_embed_norm")
    if not model.tied_head:
        table.append(Row("lm_head.weight", "head/table"))
    return tuple(table)


def layer_rows(model: EncoderDecoder, side: str) -> list[Row]:
    """Return the rows of the layers of the "encoder" or the "decoder"."""
    layer, ours = f"model.{side}.layers.{{layer}}.", f"{side}_blocks/"
    heads = model.num_heads if side == "encoder" else model.decoder_heads
    found = []
    attentions = [("self_attn", "attention")]
    attentions += [("encoder_attn", "cross")] if side == "decoder" else []
    for theirs, leaf in attentions:
        for name, part in (("q", "query"), ("k", "key"), ("v", "value")):
            start, end = f"{layer}{theirs}.{name}_proj", f"{ours}{leaf}/{part}"
            found += [
                Row(f"{start}.weight", f"{end}/kernel", split_heads(heads)),
                Row(f"{start}.bias", f"{end}/bias", split_bias(heads)),
            ]
        out = f"{layer}{theirs}.out_proj"
        found += [
            Row(f"{out}.weight", f"{ours}{leaf}/out/kernel", merge_heads(heads)),
            Row(f"{out}.bias", f"{ours}{leaf}/out/bias"),
            *_norm(f"{layer}{theirs}_layer_norm", f"{ours}{leaf}_norm"),
        ]
    for theirs, leaf in (("fc1", "mlp/up"), ("fc2", "mlp/down")):
        found += [
            Row(f"{layer}{theirs}.weight", f"{ours}{leaf}/kernel", TRANSPOSE),
            Row(f"{layer}{theirs}.bias", f"{ours}{leaf}/bias"),
        ]
    return found + _norm(f"{layer}final_layer_norm", f"{ours}mlp_norm")


def _norm(theirs: str, ours: str) -> list[Row]:
    return [Row(f"{theirs}.weight", f"{ours}/scale"), Row(f"{theirs}.bias", f"{ours}/bias")]


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
