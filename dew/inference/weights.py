"""The decode engine's own copy of the weights: whole arrays, one a matrix of each layer."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dew.inference.bundle import Bundle
from dew.inference.narrow import narrow
from dew.nn.block import BlockSpec
from dew.nn.lora import plain_variables
from dew.nn.quantized import Quantized
from dew.typing import Variables

Norm = dict[str, jax.Array]
Matrix = jax.Array | Quantized


class LayerWeights(NamedTuple):
    """One layer, each matrix [inputs, outputs]; the maps that read one input are one matrix."""

    norms: dict[str, Norm]
    head_norms: tuple[Norm, Norm] | None
    qkv: Matrix
    qkv_bias: jax.Array | None
    out: Matrix
    out_bias: jax.Array | None
    mlp: MLPWeights | dict[str, jax.Array]


class MLPWeights(NamedTuple):
    """A plain or gated MLP; the matrices of a mixture of experts stay a dict by their names."""

    inner: Matrix
    inner_bias: jax.Array | None
    down: Matrix
    down_bias: jax.Array | None


class DecodeWeights(NamedTuple):
    """All weights of a model; `head` is None where it is the embedding."""

    embed: Matrix
    positions: jax.Array | None
    layers: tuple[LayerWeights, ...]
    norm: Norm | None
    head: Matrix | None


_Kept = dict[str | None, tuple[list[weakref.ref], DecodeWeights]]
_CACHED: weakref.WeakKeyDictionary[Bundle, _Kept] = weakref.WeakKeyDictionary()


def decode_weights(bundle: Bundle, stored: str | None = None) -> DecodeWeights:
    """Return the bundle's weights as the decode step reads them, made once and then kept.

    A product of few rows streams a whole array [inputs, outputs] at memory speed; [outputs,
    inputs] is up to twice as slow on CPU, and a slice of a stacked array is copied first. The
    copy lives as long as the bundle, and is made anew if one of its arrays was replaced. The
    embedding is shared, not copied, unless it is stored otherwise.

    Args:
        bundle: of a `CausalTransformer`.
        stored: how `dew.inference.narrow` is to store the matrices and tables, experts' aside; None
            for the model's compute dtype.
    """
    leaves = jax.tree.leaves(bundle.variables)
    copies = _CACHED.setdefault(bundle, {})
    kept = copies.get(stored)
    if kept is not None and _same(kept[0], leaves):
        return kept[1]
    weights = split(bundle.model, bundle.variables, stored)
    copies[stored] = ([weakref.ref(leaf) for leaf in leaves], weights)
    return weights


def split(model: Any, variables: Variables, stored: str | None = None) -> DecodeWeights:
    """Return `DecodeWeights` of a `CausalTransformer`, adapters merged; see `decode_weights`."""
    variables = plain_variables(variables, model.adapter_scale)
    params = variables["params"]
    adapters = variables.get("lora", {}).get("layers", {})
    dtype = jnp.dtype(model.dtype)
    rows = params.get("position_embed")
    return DecodeWeights(
        embed=_table(params["embed"]["table"], stored, dtype),
        positions=None if rows is None else jnp.asarray(rows["table"], dtype),
        layers=tuple(
            _layer(model.block_spec, dtype, stored, params["layers"], adapters, index)
            for index in range(model.num_layers)
        ),
        norm=dict(params["final_norm"]) if model.final_norm else None,
        head=None if model.tied_head else _table(params["head"]["table"], stored, dtype),
    )


def _table(rows: Any, stored: str | None, dtype: jnp.dtype) -> Matrix:
    """Return a table [V, D], in eight bits with a scale a row: a head's outputs."""
    if stored == "int8":
        return jax.jit(lambda rows: narrow(rows.T, stored, dtype))(jnp.asarray(rows))
    return jnp.asarray(rows, dtype if stored is None else stored)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _layer(
    spec: BlockSpec,
    dtype: Any,
    stored: str | None,
    stacked: dict,
    adapters: dict,
    index: jax.Array,
) -> LayerWeights:
    # One compiled program for all layers: the index is traced.
    layer, low = jax.tree.map(lambda leaf: leaf[index], (stacked, adapters))
    attention = layer["attention"]

    def matrix(part: str, names: tuple[str, ...], inputs: int) -> Matrix:
        merged = [
            _merged(layer[part][name]["kernel"], low.get(part, {}).get(name), spec.adapter_scale)
            for name in names
        ]
        whole = jnp.concatenate([k.reshape(inputs, -1) for k in merged], axis=1)
        return narrow(whole, stored, dtype)

    def biases(part: dict, names: tuple[str, ...]) -> jax.Array | None:
        if "bias" not in part[names[0]]:
            return None
        return jnp.concatenate([part[name]["bias"].reshape(-1) for name in names]).astype(dtype)

    def mlp() -> MLPWeights | dict[str, jax.Array]:
        if spec.experts is not None:
            return {name: leaf.astype(dtype) for name, leaf in layer["mlp"].items()}
        inner = ("gate", "up") if spec.mlp == "gated" else ("up",)
        return MLPWeights(
            inner=matrix("mlp", inner, spec.emb_features),
            inner_bias=biases(layer["mlp"], inner),
            down=matrix("mlp", ("down",), spec.mlp_features),
            down_bias=biases(layer["mlp"], ("down",)),
        )

    heads = ("query", "key", "value")
    width = spec.num_heads * spec.head_features
    return LayerWeights(
        norms={name: layer[name] for name in spec.norm_names},
        head_norms=((attention["query_norm"], attention["key_norm"]) if spec.head_norm else None),
        qkv=matrix("attention", heads, spec.emb_features),
        qkv_bias=biases(attention, heads),
        out=matrix("attention", ("out",), width),
        out_bias=biases(attention, ("out",)),
        mlp=mlp(),
    )


def _same(references: list[weakref.ref], leaves: list[Any]) -> bool:
    return len(references) == len(leaves) and all(
        reference() is leaf for reference, leaf in zip(references, leaves, strict=True)
    )


def _merged(kernel: jax.Array, adapter: dict | None, scale: float) -> jax.Array:
    if not adapter:
        return kernel
    return kernel + scale * jnp.tensordot(adapter["a"], adapter["b"], axes=1).astype(kernel.dtype)
