"""Phi 3: Llama with one fused map for queries, keys and values, and one for gate and up."""

from __future__ import annotations

import dataclasses
from typing import Any

from bridges.config import Keys
from bridges.decoders import Defaults, decoder_rows, linear, read_decoder
from bridges.family import Family
from bridges.moves import TRANSPOSE, merge_heads, split_by
from bridges.rope import read_rope, rope_entries, rotary_share
from bridges.table import Row
from dew.nn.backbones.causal_transformer import CausalTransformer

RENAMED = {"su": "longrope", "yarn": "longrope"}
DEFAULTS = Defaults(32064, 3072, 8192, 32, 32, 4096, rms_norm_eps=1e-5)


def model(keys: Keys) -> CausalTransformer:
    """Return the model that a Phi 3 config describes; defaults are `Phi3Config`'s."""
    share = rotary_share(keys, 1.0)
    rope = read_rope(keys, DEFAULTS.rope_theta, partial=True, renamed=RENAMED)
    found = read_decoder(
        keys,
        DEFAULTS,
        window=keys.integer("sliding_window", None),
        rope=dataclasses.replace(rope, renewed=rope.kind == "longrope"),
    )
    return found.clone(rotary_features=int(found.head_width * share))


def rows(model: CausalTransformer) -> tuple[Row, ...]:
    """Return Phi's tensors (theirs) and dew's leaves (ours)."""
    layer = "model.layers.{layer}."
    names = tuple(f"layers/attention/{name}/kernel" for name in ("query", "key", "value"))
    attention = [
        Row(f"{layer}self_attn.qkv_proj.weight", names, split_by(model.head_width)),
        *linear("self_attn.o_proj", "attention/out", merge_heads(model.num_heads)),
    ]
    inner = ("layers/mlp/gate/kernel", "layers/mlp/up/kernel")
    mlp = [
        Row(f"{layer}mlp.gate_up_proj.weight", inner, TRANSPOSE),
        *linear("mlp.down_proj", "mlp/down", TRANSPOSE),
    ]
    return decoder_rows(model, attention=attention, mlp=mlp)


def exported(config: dict[str, Any]) -> dict[str, Any]:
    """Return the rotary keys of an exported config, in the spellings of transformers 4 and 5.

    transformers 4 takes three fields under `rope_scaling`, no more, and the others beside it.
    """
    entries = rope_entries(config)
    inside = entries["rope_parameters"]
    share = inside.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if inside["rope_type"] in (*RENAMED, "longrope"):
        entries["rope_scaling"] = {
            "type": "longrope",
            **{name: inside[name] for name in ("short_factor", "long_factor")},
        }
    else:
        entries["rope_scaling"] = None
    return {**entries, **({} if share is None else {"partial_rotary_factor": share})}


FAMILY = Family(
    model_type="phi3",
    architectures=("Phi3ForCausalLM",),
    model=model,
    rows=rows,
    base_prefix="model.",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    harmless=frozenset({"attention_dropout", "attention_bias", "resid_pdrop", "embd_pdrop"}),
    exported=exported,
)
"""The family that `model_type: phi3` names."""
