"""Llama as llama.cpp stores it: tensor names, row order and fields, in Hugging Face's terms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from dew.errors import InputRefused, shown

ROPE_FACTORS = "rope_freqs.weight"
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_rot_embd": "self_attn.rotary_emb.inv_freq",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
BLOCK = re.compile(r"blk\.(\d{1,9})\.(\w+)\.(weight|bias)")
READ = (
    "vocab_size",
    "context_length",
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "expert_count",
    "expert_used_count",
)
# The three values that every Llama 3.1, 3.2 and 3.3 has; a GGUF keeps only the factors they give.
LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def hf_name(name: str) -> str:
    """Return the Hugging Face name of a llama.cpp tensor, or `name` itself where there is none."""
    stem, _, leaf = name.rpartition(".")
    if stem in OUTER and leaf in ("weight", "bias"):
        return f"{OUTER[stem]}.{leaf}"
    match = BLOCK.fullmatch(name)
    if match is None or match[2] not in INNER:
        return name
    inner = INNER[match[2]]
    leaf = "" if inner.endswith("inv_freq") else f".{match[3]}"
    return f"model.layers.{int(match[1])}.{inner}{leaf}"


def unpermuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's row order of the query and key projections.

    Its rotary embedding turns neighbours (0, 1), (2, 3), ... of a head; Hugging Face turns the
    first half of a head against the second. So llama.cpp's row 2 i + j of a head is row
    i + j size/2 of ours.

    Args:
        rows: [heads * size, ...], a weight or a bias.
        heads: number of heads.

    Returns:
        The same rows in Hugging Face's order, as a new C-contiguous array.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(np.swapaxes(pairs, 1, 2)).reshape(rows.shape)


def heads_of(name: str, config: Mapping[str, Any]) -> int | None:
    """Return how many heads' rows the Hugging Face tensor `name` holds permuted, if it does."""
    if ".self_attn.q_proj." in name:
        return config["num_attention_heads"]
    return config["num_key_value_heads"] if ".self_attn.k_proj." in name else None


def hf_config(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    rope_factors: np.ndarray | None,
    where: str,
) -> dict[str, Any]:
    """Return the config.json that Hugging Face's Llama would have for a GGUF file.

    Args:
        metadata: the file's fields.
        shapes: Hugging Face tensor name to shape.
        rope_factors: [head_dim / 2], the divisors of the rotary frequencies, if there are any.
        where: what messages call the file.

    Returns:
        A complete config. Fields of the architecture that have no counterpart appear under their
        own names, so that whoever reads the config names or refuses them.

    Raises:
        InputRefused: a field is absent, of the wrong type, or asks for another computation.
    """
    fields = _Fields(metadata, where)
    heads, width = fields.count("attention.head_count"), fields.count("embedding_length")
    head_dim = _head_dim(fields, width, heads)
    rows = [*shapes.get("model.embed_tokens.weight", ()), 0][0]
    theta = fields.real("rope.freq_base", 10000.0)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields.count("vocab_size", rows),
        "hidden_size": width,
        "intermediate_size": fields.count("feed_forward_length"),
        "num_hidden_layers": fields.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": fields.count("context_length"),
        "rms_norm_eps": fields.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(fields, rope_factors, theta, head_dim),
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in shapes,
        "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in shapes,
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "torch_dtype": "float32",
    }
    for key, field in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        config[f"{key}_token_id"] = fields.token(f"tokenizer.ggml.{field}_token_id")
    if fields.count("expert_count", 0, least=0):
        fields.refuse("llama.expert_count", "0: mixtures of experts are not computed")
    _check_heads(config, fields)
    return config | fields.others()


class _Fields:
    """The fields of the llama architecture, checked as they are read."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self.metadata = metadata
        self.where = where

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Raise the refusal of a field's value."""
        found = shown(self.metadata[key]) if key in self.metadata else "absent"
        raise InputRefused(
            f"{self.where}: the field {key} is {found}. Expected {expected}; "
            "convert the model again or load its safetensors."
        )

    def get(self, name: str) -> Any:
        """Return a field of the architecture, or None."""
        return self.metadata.get(f"llama.{name}")

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number of at least `least`."""
        value = self.get(name)
        value = default if value is None else value
        if type(value) is not int or value < least:
            self.refuse(f"llama.{name}", f"a whole number of at least {least}")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """Return a positive number, as the shortest decimal that is the stored float32."""
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            self.refuse(f"llama.{name}", "a finite number above 0")
        return float(str(np.float32(value)))

    def token(self, key: str) -> int | None:
        """Return a token id, or None where the file has none."""
        value = self.metadata.get(key)
        if value is not None and (type(value) is not int or value < 0):
            self.refuse(key, "a token id")
        return value

    def others(self) -> dict[str, Any]:
        """Return the architecture's fields that this file does not translate."""
        known = {f"llama.{name}" for name in READ}
        return {
            key: value
            for key, value in self.metadata.items()
            if key.startswith("llama.") and key not in known
        }


def _head_dim(fields: _Fields, width: int, heads: int) -> int:
    """Return the size of a head; all of it must be turned by the rotary embedding."""
    head_dim = fields.count("attention.key_length", width // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.count(name, head_dim) != head_dim:
            fields.refuse(f"llama.{name}", f"the head size {head_dim}")
    if head_dim % 2:
        fields.refuse("llama.attention.key_length", f"an even head size, not {head_dim}")
    return head_dim


def _check_heads(config: Mapping[str, Any], fields: _Fields) -> None:
    """Refuse heads that do not divide what they share."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % kv_heads:
        fields.refuse("llama.attention.head_count_kv", f"a divisor of the {heads} heads")
    if fields.get("attention.key_length") is None and config["hidden_size"] % heads:
        fields.refuse(
            "llama.attention.head_count", f"a divisor of the width {config['hidden_size']}"
        )


def _rope_scaling(
    fields: _Fields, factors: np.ndarray | None, theta: float, head_dim: int
) -> dict[str, Any] | None:
    """Return `rope_scaling` as a config.json holds it."""
    kind = fields.get("rope.scaling.type")
    if factors is not None:
        if kind not in (None, "none", "linear") or fields.get("rope.scaling.factor") is not None:
            fields.refuse("llama.rope.scaling.type", f"none beside the tensor {ROPE_FACTORS}")
        return _llama3(fields, factors, theta, head_dim)
    if kind is None and fields.get("rope.scale_linear") is not None:
        factor = fields.real("rope.scale_linear")
        return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    if kind in (None, "none"):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": fields.real("rope.scaling.factor")}
    if kind == "yarn":
        original = fields.count("rope.scaling.original_context_length")
        factor = fields.real("rope.scaling.factor")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    fields.refuse("llama.rope.scaling.type", "none, linear or yarn")


def _llama3(
    fields: _Fields, factors: np.ndarray, theta: float, head_dim: int
) -> dict[str, Any] | None:
    """Return the Llama 3 scaling that gives these frequency divisors, or refuse them."""
    factor = float(str(np.float32(factors.max(initial=0.0))))
    if factors.shape == (head_dim // 2,) and np.all(factors == 1.0):
        return None
    if factors.shape == (head_dim // 2,) and factor > 1.0:
        wanted = llama3_factors(factor, theta, head_dim)
        if np.allclose(factors, wanted, rtol=1e-5, atol=0.0):
            return {"rope_type": "llama3", "factor": factor, **LLAMA3}
    raise InputRefused(
        f"{fields.where}: the tensor {ROPE_FACTORS} holds frequency divisors that Llama 3's "
        f"scaling ({LLAMA3}) does not give. Expected those; load the model's safetensors."
    )


def llama3_factors(factor: float, theta: float, head_dim: int) -> np.ndarray:
    """Return by how much Llama 3's scaling divides each rotary frequency.

    Wavelengths below original/high stay, those above original/low are divided by `factor`, and
    in between the frequency is interpolated linearly in original/wavelength.

    Args:
        factor: the stretch of the longest wavelengths.
        theta: rotary base.
        head_dim: size of a head.

    Returns:
        float64 [head_dim / 2], each between 1 and `factor`.

    Source: `rope_type: llama3` of transformers 5.24.
    """
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    frequency = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = LLAMA3["original_max_position_embeddings"] * frequency / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - kept) / factor + kept)
