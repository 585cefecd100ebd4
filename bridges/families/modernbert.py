"""ModernBERT: norms before each branch, rotary positions, windows in two layers of three."""

from __future__ import annotations

from typing import Any

from bridges.config import Keys, read_activation
from bridges.decoders import FULL, SLIDING
from bridges.family import Family
from bridges.moves import KEEP, TRANSPOSE, merge_heads, split_bias, split_by
from bridges.rope import read_rope
from bridges.table import Row
from bridges.text_encoders import (
    architectures,
    head_rows,
    label_count,
    norm_rows,
    read_sizes,
    refuse_decoders,
)
from dew.nn.backbones.modern_encoder import ModernEncoder
from dew.nn.heads import HeadSpec
from dew.nn.rotary import Rope

DECODER = "decoder.weight"
LAYER = "model.layers.{layer}."
EVERY, WINDOW = 3, 128
GLOBAL_THETA, LOCAL_THETA = 160000.0, 10000.0
TRANSFORM = {"dense": "head.dense", "norm": "head.norm"}
NAMES = {
    "masked": {**TRANSFORM, "bias": "decoder.bias"},
    **{kind: {**TRANSFORM, "out": "classifier"} for kind in ("sequence", "token", "span")},
}
HARMLESS = """
attention_dropout embedding_dropout mlp_dropout classifier_dropout deterministic_flash_attn
reference_compile repad_logits_with_grad sparse_prediction sparse_pred_ignore_index cls_token_id
initializer_cutoff_factor layer_norm_eps
"""


def model(keys: Keys) -> ModernEncoder:
    """Return the model that a ModernBERT config describes; defaults are `ModernBertConfig`'s."""
    refuse_decoders(keys)
    sizes = read_sizes(
        keys,
        vocab_size=50368,
        num_hidden_layers=22,
        intermediate_size=1152,
        max_position_embeddings=8192,
    )
    if sizes["emb_features"] // sizes["num_heads"] % 2:
        keys.clash("num_attention_heads", "rotary positions need an even head size")
    rope, local_rope = _ropes(keys)
    norm = "layer" if keys.flag("norm_bias", False) else "layer_unbiased"
    epsilon = keys.number("norm_eps", 1e-5, low=0.0)
    return ModernEncoder(
        **sizes,
        norm_epsilon=epsilon,
        activation=read_activation(keys, "hidden_activation", "gelu"),
        heads=_heads(keys, sizes, norm, epsilon),
        window=keys.integer("local_attention", WINDOW) // 2,
        windowed=_windowed(keys, sizes["num_layers"]),
        rope=rope,
        local_rope=local_rope,
        norm=norm,
        attention_bias=keys.flag("attention_bias", False),
        mlp_bias=keys.flag("mlp_bias", False),
    )


def _heads(keys: Keys, sizes: dict[str, Any], norm: str, epsilon: float) -> tuple[HeadSpec, ...]:
    pool = keys.text("classifier_pooling", "cls")
    if pool not in ("cls", "mean"):
        keys.refuse("classifier_pooling", "expected cls or mean")
    before: dict[str, Any] = {
        "features": sizes["emb_features"],
        "activation": read_activation(keys, "classifier_activation", "gelu"),
        "norm": norm,
        "norm_epsilon": epsilon,
        "dense_bias": keys.flag("classifier_bias", False),
    }
    labels, bias = label_count(keys), keys.flag("decoder_bias", True)
    return (
        HeadSpec("masked", sizes["vocab_size"], **before, out_bias=bias),
        HeadSpec("sequence", labels, **before, pool="first" if pool == "cls" else "mean"),
        HeadSpec("token", labels, **before),
        HeadSpec("span", labels, **before),
    )


def _windowed(keys: Keys, layers: int) -> tuple[bool, ...]:
    """Return which layers have a window: of each `global_attn_every_n_layers` all but the first."""
    kinds = keys.words("layer_types")
    every = keys.integer("global_attn_every_n_layers", EVERY)
    if kinds and (len(kinds) != layers or set(kinds) - {SLIDING, FULL}):
        keys.refuse("layer_types", f"expected {layers} times {SLIDING} or {FULL}")
    return tuple(kind == SLIDING for kind in kinds) or _pattern(layers, every)


def _pattern(layers: int, every: int) -> tuple[bool, ...]:
    return tuple(bool(layer % every) for layer in range(layers))


def _ropes(keys: Keys) -> tuple[Rope, Rope]:
    """Return the rope of the layers that see everything, and that of the windowed ones.

    transformers 5 keeps one object for each under `rope_parameters`, 4 two bases.
    """
    thetas = {
        FULL: keys.number("global_rope_theta", GLOBAL_THETA, low=1e-6),
        SLIDING: keys.number("local_rope_theta", LOCAL_THETA, low=1e-6),
    }
    both, found = keys.section("rope_parameters"), []
    for part, theta in thetas.items():
        section = both.section(part)
        found.append(read_rope(Keys({"rope_parameters": dict(section.values)}, keys.where), theta))
        for name, value in section.values.items():
            section.only(name, value)
    return found[0], found[1]


def rows(model: ModernEncoder) -> tuple[Row, ...]:
    """Return ModernBERT's tensors (theirs) and dew's leaves (ours)."""
    heads, width = model.num_heads, model.emb_features // model.num_heads
    biased = model.norm == "layer"

    def fused(leaf: str) -> tuple[str, ...]:
        return tuple(f"layers/attention/{name}/{leaf}" for name in ("query", "key", "value"))

    table = [
        Row("model.embeddings.tok_embeddings.weight", "embed/table"),
        *norm_rows("model.embeddings.norm", "embed_norm", bias=biased),
        Row(f"{LAYER}attn.Wqkv.weight", fused("kernel"), split_by(width)),
        Row(f"{LAYER}attn.Wo.weight", "layers/attention/out/kernel", merge_heads(heads)),
        *norm_rows(f"{LAYER}mlp_norm", "layers/mlp_norm", bias=biased),
        Row(f"{LAYER}mlp.Wi.weight", _inner("kernel"), TRANSPOSE),
        Row(f"{LAYER}mlp.Wo.weight", "layers/mlp/down/kernel", TRANSPOSE),
        *norm_rows("model.final_norm", "final_norm", bias=biased),
        *head_rows(model, NAMES, DECODER),
    ]
    for layer in range(1, model.num_layers):
        for theirs, ours in (("weight", "scale"), ("bias", "bias"))[: 1 + biased]:
            name = f"model.layers.{layer}.attn_norm.{theirs}"
            table.append(Row(name, f"attention_norms/{ours}_{layer}"))
    if model.attention_bias:
        table.append(Row(f"{LAYER}attn.Wqkv.bias", fused("bias"), split_bias(heads)))
        table.append(Row(f"{LAYER}attn.Wo.bias", "layers/attention/out/bias"))
    if model.mlp_bias:
        table.append(Row(f"{LAYER}mlp.Wi.bias", _inner("bias"), KEEP))
        table.append(Row(f"{LAYER}mlp.Wo.bias", "layers/mlp/down/bias"))
    return tuple(table)


def _inner(leaf: str) -> tuple[str, str]:
    return f"layers/mlp/gate/{leaf}", f"layers/mlp/up/{leaf}"


def exported(config: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of windows and bases of an exported config, as transformers 4 and 5 read."""
    both = config.get("rope_parameters") or {}
    thetas = {
        part: (both.get(part) or {}).get("rope_theta") or config.get(key) or default
        for part, key, default in (
            (FULL, "global_rope_theta", GLOBAL_THETA),
            (SLIDING, "local_rope_theta", LOCAL_THETA),
        )
    }
    layers = config.get("num_hidden_layers", 22)
    kinds = config.get("layer_types")
    every = config.get("global_attn_every_n_layers", EVERY)
    if kinds:
        windowed = tuple(kind == SLIDING for kind in kinds)
        fit = [count for count in range(1, layers + 1) if _pattern(layers, count) == windowed]
        every = fit[0] if fit else every
    return {
        "global_rope_theta": thetas[FULL],
        "local_rope_theta": thetas[SLIDING],
        "global_attn_every_n_layers": every,
        "rope_parameters": {
            part: {"rope_type": "default", **(both.get(part) or {}), "rope_theta": theta}
            for part, theta in thetas.items()
        },
    }


FAMILY = Family(
    model_type="modernbert",
    architectures=("ModernBertModel",),
    model=model,
    rows=rows,
    base_prefix="model.",
    embedding="model.embeddings.tok_embeddings.weight",
    head=DECODER,
    tied_default=True,
    heads=architectures("ModernBert"),
    head_names=(r"head\..*", r"decoder\..*", r"classifier\..*"),
    harmless=frozenset(HARMLESS.split()),
    exported=exported,
)
"""The family that `model_type: modernbert` names."""
