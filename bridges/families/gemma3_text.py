"""Gemma 3's decoder: Gemma 2 with normed heads, and another rotary base in windowed layers."""

from __future__ import annotations

from typing import Any

from bridges.config import Keys, read_activation
from bridges.decoders import FULL, SLIDING, Defaults, read_decoder, read_windows
from bridges.families.gemma2 import capping, rows
from bridges.family import Family
from bridges.rope import read_rope, rope_entries
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.rotary import Rope

DEFAULTS = Defaults(
    262208, 2304, 9216, 26, 8, 131072, num_key_value_heads=4, head_dim=256, tie_word_embeddings=True
)
GLOBAL_THETA, LOCAL_THETA = 1e6, 1e4


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a Gemma 3 text config describes; defaults are `Gemma3TextConfig`'s."""
    keys.only("use_bidirectional_attention", False)
    layers = keys.integer("num_hidden_layers", DEFAULTS.num_hidden_layers)
    every = keys.integer("sliding_window_pattern", keys.integer("_sliding_window_pattern", 6))
    bias = keys.flag("attention_bias", False)
    window = keys.integer("sliding_window", 4096)
    activation = read_activation(keys, "hidden_activation", "gelu_pytorch_tanh")
    whole, near = _ropes(keys)
    return read_decoder(
        keys,
        DEFAULTS,
        activation=activation,
        rope=whole,
        local_rope=near,
        norm="rms_offset",
        norm_places="around",
        head_norm="head",
        embed_scale=keys.integer("hidden_size", DEFAULTS.hidden_size) ** 0.5,
        score_scale=keys.integer("query_pre_attn_scalar", 256) ** -0.5,
        score_cap=capping(keys, "attn_logit_softcapping", None),
        logit_cap=capping(keys, "final_logit_softcapping", None),
        qkv_bias=bias,
        out_bias=bias,
        **read_windows(keys, layers, window, [bool((i + 1) % every) for i in range(layers)]),
    )


def _ropes(keys: Keys) -> tuple[Rope, Rope]:
    """Return the rope of the layers that see everything, and that of the windowed ones.

    transformers 5 keeps one object for each under `rope_parameters`; 4 keeps `rope_theta` and
    `rope_scaling` for the former and `rope_local_base_freq` for the latter.
    """
    both = keys.section("rope_parameters")
    theta = keys.number("rope_local_base_freq", LOCAL_THETA, low=1e-6)
    if FULL not in both and SLIDING not in both:
        return read_rope(keys, GLOBAL_THETA), Rope(theta=theta)
    old = {name: keys.values[name] for name in ("rope_theta", "rope_scaling") if name in keys}
    for name in old:
        keys.only(name, old[name])
    whole = Keys({**old, "rope_parameters": dict(both.section(FULL).values)}, keys.where)
    near = Keys({"rope_parameters": dict(both.section(SLIDING).values)}, keys.where)
    for part in (FULL, SLIDING):
        for name, value in both.section(part).values.items():
            both.section(part).only(name, value)
    return read_rope(whole, GLOBAL_THETA), read_rope(near, theta)


def exported(config: dict[str, Any]) -> dict[str, Any]:
    """Return the rotary keys of an exported config, in the spellings of transformers 4 and 5."""
    both = config.get("rope_parameters") or {}
    whole = {**(config.get("rope_scaling") or {}), **(both.get(FULL) or {})}
    whole.setdefault("rope_theta", config.get("rope_theta") or GLOBAL_THETA)
    near: dict[str, Any] = dict(both.get(SLIDING) or {"rope_type": "default"})
    near.setdefault("rope_theta", config.get("rope_local_base_freq") or LOCAL_THETA)
    entries = rope_entries({"rope_parameters": whole})
    return {
        "rope_theta": entries["rope_theta"],
        "rope_scaling": entries["rope_scaling"],
        "rope_local_base_freq": near["rope_theta"],
        "rope_parameters": {FULL: entries["rope_parameters"], SLIDING: near},
    }


FAMILY = Family(
    model_type="gemma3_text",
    architectures=("Gemma3ForCausalLM",),
    model=model,
    rows=rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    tied_default=True,
    harmless=frozenset({"attention_dropout", "cache_implementation"}),
    exported=exported,
)
"""The family that `model_type: gemma3_text` names."""
