"""A native model whose linear maps are stored in eight or four bits, for adapters beside them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from bridges.adapter_bundle import plain_of
from bridges.adapter_places import HEADS, places
from dew.errors import InputRefused
from dew.inference.bundle import Bundle
from dew.nn.lora import found_module, path_of, replaced
from dew.nn.quantized import Quantized, quantized, widened


def quantize(bundle: Bundle, kind: str) -> Bundle:
    """Return the bundle with the kernels of its layers stored narrow; see `dew.nn.quantized`.

    Embeddings, norms, biases, experts and the map to the outputs stay as they are.

    Args:
        bundle: a plain model, or its shapes.
        kind: "int8" (a scale a row) or "nf4" (a scale for each 64 values).

    Raises:
        InputRefused: a traced model, one without such maps, an adapter beside it, another kind.
    """
    from bridges.torch.checkpoint import TracedBundle

    if isinstance(bundle, TracedBundle):
        raise InputRefused(traced_is_wide(bundle.family, kind))
    if plain_of(bundle) is not bundle:
        raise InputRefused(
            "the bundle has an adapter; store its base narrow before it is laid over"
        )
    known = [
        place
        for place in places(bundle)
        if not any(part in HEADS for part in place.module.split("."))
    ]
    if not known:
        raise InputRefused(f"the native {bundle.family} has no linear maps to store in {kind}")
    params: Any = bundle.variables.get("params") or bundle.model.parameter_shapes()
    for place in known:
        for target in place.ours:
            path = path_of(target)
            module = found_module(params, path)
            store = partial(
                quantized, kind=kind, inputs=place.inputs, stacked=place.layers is not None
            )
            planned = isinstance(module["kernel"], jax.ShapeDtypeStruct)
            kernel = module["kernel"]
            narrow = jax.eval_shape(store, kernel) if planned else store(kernel)
            params = replaced(params, path, {**module, "kernel": narrow})
    return bundle.replace(variables={**bundle.variables, "params": params})


def wide_of(bundle: Bundle) -> Bundle:
    """Return a bundle whose kernels are all arrays: itself where none is stored narrow."""

    def is_narrow(leaf: Any) -> bool:
        return isinstance(leaf, Quantized)

    if not any(map(is_narrow, jax.tree.leaves(bundle.variables, is_leaf=is_narrow))):
        return bundle
    return bundle.replace(variables=widened(bundle.variables))


def traced_is_wide(family: str, kind: str) -> str:
    """Return why a traced model is not stored narrow."""
    return (
        f"{family} is traced, and only native models store their weights in {kind}; leave out "
        "load_in_8bit and load_in_4bit, or quantize"
    )
