"""Marian's translators: BART with fixed sinusoidal positions and without norms of the embedding."""

from __future__ import annotations

from bridges.config import Keys
from bridges.families.bart import HARMLESS, read_pair, rows
from bridges.family import Family, NotNative
from dew.nn.backbones.encoder_decoder import EncoderDecoder


def model(keys: Keys) -> EncoderDecoder:
    """Return the model that a Marian config describes; defaults are `MarianConfig`'s."""
    if not keys.flag("share_encoder_decoder_embeddings", True):
        raise NotNative(f"{keys.where}: encoder and decoder have vocabularies of their own")
    vocab = keys.integer("vocab_size", 58101)
    if keys.integer("decoder_vocab_size", vocab) != vocab:
        keys.clash("decoder_vocab_size", f"not vocab_size {vocab}, although they are shared")
    return read_pair(keys, vocab_size=vocab, positions="sinusoidal")


FAMILY = Family(
    model_type="marian",
    architectures=("MarianMTModel",),
    model=model,
    rows=rows,
    base_prefix="model.",
    embedding="model.shared.weight",
    head="lm_head.weight",
    tied_default=True,
    harmless=frozenset(HARMLESS.split()),
    head_names=(r"final_logits_bias",),
    ignored=(
        r"model\.(encoder|decoder)\.embed_tokens\.weight",
        # Fixed, and computed here.
        r"model\.(encoder|decoder)\.embed_positions\.weight",
    ),
    answers=True,
)
"""The family that `model_type: marian` names."""
