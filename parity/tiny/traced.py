"""Tiny configs of model types without a native family, which go by tracing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parity.tiny.text import BART

NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LLAMA_LIKE = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    **NO_IDS,
}
GPT_LIKE = {
    "vocab_size": 211,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "rotary_dim": 8,
    **NO_IDS,
}
BERT_LIKE = {
    "vocab_size": 211,
    "embedding_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
BART_LIKE = {**BART, "decoder_layers": 2}
VIT_LIKE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 24,
    "patch_size": 8,
    "num_labels": 3,
}


def _of(name: str, sizes: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the config of a class of transformers, without its model type."""
    return {"architectures": [name], **sizes, **fields}


_BY_TYPE: Mapping[str, Mapping[str, Any]] = {
    "gptj": _of("GPTJForCausalLM", GPT_LIKE),
    "codegen": _of("CodeGenForCausalLM", GPT_LIKE, n_ctx=128),
    "gpt_neo": _of(
        "GPTNeoForCausalLM",
        NO_IDS,
        vocab_size=211,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        max_position_embeddings=128,
        attention_types=[[["global", "local"], 1]],
        window_size=5,
    ),
    "bloom": _of("BloomForCausalLM", NO_IDS, vocab_size=211, hidden_size=64, n_layer=2, n_head=4),
    "falcon": _of(
        "FalconForCausalLM",
        NO_IDS,
        vocab_size=211,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_hidden_size=96,
        max_position_embeddings=128,
    ),
    "cohere2": _of(
        "Cohere2ForCausalLM",
        LLAMA_LIKE,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "olmo3": _of(
        "Olmo3ForCausalLM",
        LLAMA_LIKE,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "starcoder2": _of("Starcoder2ForCausalLM", LLAMA_LIKE, sliding_window=None),
    "stablelm": _of("StableLmForCausalLM", LLAMA_LIKE, use_qkv_bias=True, qk_layernorm=True),
    "phi": _of("PhiForCausalLM", LLAMA_LIKE, qk_layernorm=True),
    "mamba": _of(
        "MambaForCausalLM",
        NO_IDS,
        vocab_size=211,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        state_size=8,
        time_step_rank=4,
    ),
    "albert": _of("AlbertForMaskedLM", BERT_LIKE),
    "squeezebert": _of("SqueezeBertForSequenceClassification", BERT_LIKE, num_labels=3),
    "mbart": _of("MBartForConditionalGeneration", BART_LIKE),
    "pegasus": _of("PegasusForConditionalGeneration", BART_LIKE),
    "plbart": _of("PLBartForConditionalGeneration", BART_LIKE),
    "beit": _of("BeitForImageClassification", VIT_LIKE, use_relative_position_bias=True),
    "deit": _of("DeiTForImageClassification", VIT_LIKE),
    "convnextv2": _of(
        "ConvNextV2ForImageClassification",
        {},
        num_stages=2,
        hidden_sizes=[8, 16],
        depths=[1, 2],
        image_size=32,
        num_labels=3,
    ),
    "regnet": _of(
        "RegNetForImageClassification",
        {},
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 2],
        groups_width=8,
        num_labels=3,
    ),
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    name: {"model_type": name, **config} for name, config in _BY_TYPE.items()
}
"""Name to config.json; the names are the model types."""
