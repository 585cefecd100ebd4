"""Faults of where weights lie: CASES B."""

from __future__ import annotations

import numpy as np
from mutations import (
    Fault,
    dropped,
    exchanged,
    field,
    interleaved,
    tensor,
    transposed,
    turned_heads,
)

L, G, B = "model.layers.", "transformer.h.", "encoder.layer."
T = "encoder.block.0.layer.0.SelfAttention"

LAYOUT = (
    Fault(
        "query transposed",
        "transpose",
        "llama",
        tensor(f"{L}1.self_attn.q_proj.weight", transposed),
        f"{L}1.self_attn.q_proj",
    ),
    Fault(
        "GPT-2's output map transposed",
        "transpose",
        "gpt2",
        tensor(f"{G}0.attn.c_proj.weight", transposed),
        f"{G}0.attn.c_proj",
    ),
    Fault(
        "GPT-2's inner map transposed",
        "transpose",
        "gpt2",
        tensor(f"{G}2.mlp.c_fc.weight", transposed),
        f"{G}2.mlp.c_fc",
    ),
    Fault(
        "BERT's output map transposed",
        "transpose",
        "bert",
        tensor(f"{B}2.attention.output.dense.weight", transposed),
        f"{B}2.attention.output.dense",
    ),
    Fault(
        "image key transposed",
        "transpose",
        "vit labels",
        tensor("vit.encoder.layer.1.attention.attention.key.weight", transposed),
        "vit.layers.1.attention.k_proj",
    ),
    Fault(
        "picture kernel turned",
        "kernel flip",
        "resnet labels",
        tensor(
            "resnet.encoder.stages.1.layers.1.layer.1.convolution.weight",
            lambda w: w[..., ::-1, ::-1],
        ),
        "resnet.encoder.stages.1.layers.1.layer.1",
    ),
    Fault(
        "sound kernel turned",
        "kernel flip",
        "whisper",
        tensor("model.encoder.conv1.weight", lambda w: w[..., ::-1]),
        "model.encoder.conv1",
    ),
    Fault(
        "query in Meta's layout",
        "rotary layout",
        "llama",
        tensor(f"{L}0.self_attn.q_proj.weight", interleaved(4)),
        f"{L}0.self_attn.q_proj",
    ),
    Fault(
        "key in Meta's layout",
        "rotary layout",
        "mistral",
        tensor(f"{L}2.self_attn.k_proj.weight", interleaved(2)),
        f"{L}2.self_attn.k_proj",
    ),
    Fault(
        "key heads turned",
        "shared heads",
        "llama",
        tensor(f"{L}1.self_attn.k_proj.weight", turned_heads(2)),
        f"{L}1.self_attn.k_proj",
    ),
    Fault(
        "value heads turned",
        "shared heads",
        "mistral",
        tensor(f"{L}0.self_attn.v_proj.weight", turned_heads(2)),
        f"{L}0.self_attn.v_proj",
    ),
    Fault(
        "gate for up",
        "exchanged tensors",
        "llama",
        exchanged(f"{L}1.mlp.gate_proj.weight", f"{L}1.mlp.up_proj.weight"),
        f"{L}1.mlp.",
    ),
    Fault(
        "query for key", "exchanged tensors", "t5", exchanged(f"{T}.q.weight", f"{T}.k.weight"), T
    ),
    Fault(
        "query's bias dropped",
        "dropped bias",
        "qwen2",
        tensor(f"{L}0.self_attn.q_proj.bias", dropped),
        f"{L}0.self_attn.q_proj",
    ),
    Fault(
        "inner bias dropped",
        "dropped bias",
        "bert",
        tensor(f"{B}1.intermediate.dense.bias", dropped),
        f"{B}1.intermediate.dense",
    ),
    Fault(
        "decoder's bias dropped",
        "dropped bias",
        "whisper",
        tensor("model.decoder.layers.2.fc2.bias", dropped),
        "model.decoder.layers.2.fc2",
    ),
    Fault(
        "norm's scale with 1 in it",
        "norm offset",
        "gemma",
        tensor(f"{L}1.input_layernorm.weight", lambda w: w + 1),
        f"{L}1.input_layernorm",
    ),
    Fault(
        "norm without its 1", "norm offset", "gemma", field("norm", "rms"), f"{L}0.input_layernorm"
    ),
    Fault(
        "last norm's scale left out",
        "dropped scale",
        "llama",
        tensor("model.norm.weight", np.ones_like),
        "model.norm",
    ),
    Fault(
        "batch norm's variance for its root",
        "dropped scale",
        "resnet labels",
        tensor("resnet.embedder.embedder.normalization.running_var", np.sqrt),
        "resnet.embedder.embedder",
    ),
)
"""CASES B: where weights lie."""
