"""Tiny configs of models that read text, natively: one for each thing that a port gets wrong.

Square kernels are meant: a transpose that is forgotten still fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LLAMA = {
    "model_type": "llama",
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 211,
    "n_embd": 64,
    "n_inner": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
NEOX = {
    "model_type": "gpt_neox",
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
OPT = {
    "model_type": "opt",
    "vocab_size": 211,
    "hidden_size": 64,
    "word_embed_proj_dim": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
BERT = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
DISTILBERT = {
    "vocab_size": 211,
    "dim": 64,
    "hidden_dim": 96,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
BART = {
    "vocab_size": 211,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": 211,
    "d_model": 64,
    "d_kv": 24,
    "d_ff": 96,
    "num_layers": 3,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
HEAD_PAIRS = 8
"""Half of the features of a head: how many frequencies longrope divides."""


def _kind(model_type: str, **fields: Any) -> dict[str, Any]:
    """Return the config of a family with Llama's keys, one layer more than kinds of layers."""
    return {**LLAMA, "model_type": model_type, **fields}


def _class(name: str, model_type: str, sizes: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the config of a model that is no causal one, by its class."""
    return {"model_type": model_type, "architectures": [name], **sizes, **fields}


def _rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **fields}}


MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**LLAMA, **_rope("default", rope_theta=500000.0)},
    "llama tied": {**LLAMA, "tie_word_embeddings": True, "num_key_value_heads": 4},
    "llama biased": {
        **LLAMA,
        "attention_bias": True,
        "mlp_bias": True,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "hidden_act": "gelu",
    },
    "llama linear": {**LLAMA, **_rope("linear", factor=4.0)},
    "llama dynamic": {**LLAMA, "max_position_embeddings": 32, **_rope("dynamic", factor=2.0)},
    "llama yarn": {
        **LLAMA,
        **_rope("yarn", factor=4.0, original_max_position_embeddings=32),
    },
    "llama longrope": {
        **LLAMA,
        **_rope(
            "longrope",
            factor=4.0,
            original_max_position_embeddings=32,
            short_factor=[1.0 + pair / 8 for pair in range(HEAD_PAIRS)],
            long_factor=[2.0 + pair for pair in range(HEAD_PAIRS)],
        ),
    },
    "llama llama3": {
        **LLAMA,
        **_rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    },
    "gpt2": GPT2,
    "gpt2 untied": {
        **GPT2,
        "tie_word_embeddings": False,
        "activation_function": "gelu",
        "layer_norm_epsilon": 1e-3,
    },
    "gpt_neox": NEOX,
    "gpt_neox sequential": {
        **NEOX,
        "use_parallel_residual": False,
        "attention_bias": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "opt": OPT,
    "opt post-norm": {**OPT, "do_layer_norm_before": False, "activation_function": "gelu"},
    "mistral": _kind("mistral", sliding_window=7),
    "mixtral": _kind("mixtral", num_local_experts=5, num_experts_per_tok=2),
    "qwen2": _kind("qwen2"),
    "qwen2 windowed": _kind(
        "qwen2", use_sliding_window=True, sliding_window=7, max_window_layers=1
    ),
    "qwen3": _kind("qwen3", head_dim=24),
    "qwen3_moe": _kind(
        "qwen3_moe",
        head_dim=24,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        norm_topk_prob=False,
    ),
    "gemma": _kind("gemma", head_dim=24, tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh"),
    "gemma2": _kind(
        "gemma2",
        head_dim=24,
        sliding_window=7,
        query_pre_attn_scalar=20,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
        tie_word_embeddings=True,
    ),
    "gemma3_text": _kind(
        "gemma3_text",
        num_hidden_layers=4,
        head_dim=24,
        sliding_window=7,
        query_pre_attn_scalar=20,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        tie_word_embeddings=True,
    ),
    "phi3": _kind("phi3"),
    "phi3 partial longrope": _kind(
        "phi3",
        max_position_embeddings=128,
        original_max_position_embeddings=32,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.5,
            "short_factor": [1.0 + pair / 8 for pair in range(HEAD_PAIRS // 2)],
            "long_factor": [2.0 + pair for pair in range(HEAD_PAIRS // 2)],
        },
    ),
    "olmo2": _kind("olmo2"),
    "smollm3": _kind("smollm3", num_hidden_layers=5),
    "granite": _kind(
        "granite",
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.1,
        logits_scaling=2.0,
    ),
    "bert": _class("BertModel", "bert", BERT),
    "bert masked": _class("BertForMaskedLM", "bert", BERT),
    "roberta tokens": _class("RobertaForTokenClassification", "roberta", BERT, num_labels=5),
    "xlm-roberta masked": _class("XLMRobertaForMaskedLM", "xlm-roberta", BERT, pad_token_id=1),
    "distilbert sequence": _class(
        "DistilBertForSequenceClassification",
        "distilbert",
        DISTILBERT,
        num_labels=3,
    ),
    "mpnet": _class("MPNetModel", "mpnet", BERT, pad_token_id=1),
    "electra answers": _class(
        "ElectraForQuestionAnswering", "electra", BERT, embedding_size=40, num_labels=2
    ),
    "modernbert masked": _class(
        "ModernBertForMaskedLM",
        "modernbert",
        BERT,
        local_attention=12,
        global_attn_every_n_layers=2,
        bos_token_id=None,
        eos_token_id=None,
        cls_token_id=None,
        sep_token_id=None,
    ),
    "deberta-v2": _class(
        "DebertaV2Model",
        "deberta-v2",
        BERT,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
    ),
    "t5": _class("T5ForConditionalGeneration", "t5", T5),
    "t5 gated": _class("T5ForConditionalGeneration", "t5", T5, feed_forward_proj="gated-gelu"),
    "bart": _class("BartForConditionalGeneration", "bart", BART),
    "marian": _class(
        "MarianMTModel",
        "marian",
        BART,
        scale_embedding=True,
        activation_function="swish",
        decoder_vocab_size=211,
    ),
}
"""Name to config.json."""
