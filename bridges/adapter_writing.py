"""A native model's adapter as tensors by PEFT's names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from bridges.adapter_names import torch_name
from bridges.adapter_places import Place, places
from bridges.family import family_of
from bridges.table import EXPERT, LAYER, Index, Row
from dew.inference.bundle import Bundle
from dew.nn.dense import output_lengths
from dew.nn.lora import LoRA, found_module, path_of

PREFIX = "base_model.model."


def whole_slots(bundle: Bundle, lora: LoRA) -> Iterator[tuple[str, Row, Index]]:
    """Yield torch's name, row and index into the leaves of each tensor that is trained whole."""
    params = bundle.variables["params"]
    for row in family_of(bundle.config).rows(bundle.model):
        if not all(path in lora.whole for path in row.leaves):
            continue
        mask = lora.whole[row.leaves[0]]
        counts = found_module(params, row.leaves[0]).shape[: row.stacked]
        for index in np.ndindex(counts):
            if mask is None or mask[index[0]]:
                layered = LAYER in row.theirs
                name = row.theirs.replace(LAYER, str(index[0])) if layered else row.theirs
                full = name.replace(EXPERT, str(index[-1]) if index else "")
                yield torch_name(bundle, full), row, index


def whole_tensors(bundle: Bundle, lora: LoRA) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors that are trained whole, by torch's names."""
    params = bundle.variables["params"]
    for name, row, index in whole_slots(bundle, lora):
        yield name, row_tensor(row, params, index)


def row_tensor(row: Row, params: Mapping[str, Any], index: Index) -> np.ndarray:
    """Return one tensor of a row of the weight table."""
    parts = [np.asarray(found_module(params, path))[index] for path in row.leaves]
    moved = [row.move.out(part) for part in parts]
    return moved[0] if len(moved) == 1 else row.move.join(moved)


def written_native(
    bundle: Bundle, lora: LoRA, collection: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, tuple[int, float]]]:
    """Return an adapter's tensors by PEFT's names, and each module's rank and alpha.

    Modules of a fused map that do not share one `a` are set side by side: their rank is the sum.

    Args:
        bundle: with the adapter; its params hold what was trained whole.
        lora: the settings.
        collection: `lora`, as a bundle holds it.
    """
    tensors: dict[str, np.ndarray] = {}
    numbers: dict[str, tuple[int, float]] = {}
    known = places(bundle)
    for place in known:
        if set(place.ours) & set(lora.targets):
            for layer, name in enumerate(place.names):
                found = _written(bundle, lora, collection, place, layer)
                if found is not None:
                    sides, numbers[name] = found
                    for side, array in sides.items():
                        tensors[f"{PREFIX}{name}.{side}"] = np.ascontiguousarray(array)
    for name, array in whole_tensors(bundle, lora):
        module, _, leaf = name.rpartition(".")
        inner = ".base_layer" if leaf == "bias" and module in numbers else ""
        tensors[f"{PREFIX}{module}{inner}.{leaf}"] = np.asarray(array, np.float32)
    return tensors, numbers


def _written(
    bundle: Bundle, lora: LoRA, collection: Mapping[str, Any], place: Place, layer: int
) -> tuple[dict[str, np.ndarray], tuple[int, float]] | None:
    """Return the tensors of one module, and its rank and alpha; None without an adapter."""
    at = layer if place.layers is not None else ...
    params = bundle.variables["params"]
    pieces: list[_Piece] = []
    for target in place.ours:
        kernel = np.asarray(found_module(params, path_of(target))["kernel"][at], np.float32)
        leaf = found_module(collection, path_of(target)) if target in lora.targets else None
        pieces.append(_Piece.of(lora, target, leaf, kernel, place, layer))
    given = [piece for piece in pieces if piece.rank]
    if not given:
        return None
    first = given[0]
    if len(given) == len(pieces) and all(np.array_equal(p.a, first.a) for p in given):
        a, rank = first.a, first.rank
        sides = [
            piece.b * (piece.scale / first.scale) if piece.scale != first.scale else piece.b
            for piece in pieces
        ]
    else:
        a, rank = np.concatenate([piece.a for piece in given], axis=1), sum(p.rank for p in given)
        sides, start = [], 0
        for piece in pieces:
            b = np.zeros((rank, piece.outputs), np.float32)
            if piece.rank:
                b[start : start + piece.rank] = piece.b * np.float32(piece.scale / first.scale)
                start += piece.rank
            sides.append(b)
    found = {"lora_A.weight": a.T, "lora_B.weight": place.join([side.T for side in sides])}
    if lora.dora:
        found["lora_magnitude_vector"] = place.join([piece.magnitude for piece in pieces])
    alpha = first.alpha
    if rank != first.rank:
        alpha = first.scale * (math.sqrt(rank) if lora.rslora else rank)
    return found, (rank, alpha)


@dataclass(frozen=True)
class _Piece:
    """One of dew's modules in one layer.

    Attributes:
        rank: R, 0 without an adapter.
        alpha: numerator of `scale`.
        scale: the factor.
        a: [inputs, R].
        b: [R, outputs].
        magnitude: [outputs].
        outputs: how many.
    """

    rank: int
    alpha: float
    scale: float
    a: np.ndarray
    b: np.ndarray
    magnitude: np.ndarray
    outputs: int

    @classmethod
    def of(
        cls,
        lora: LoRA,
        target: str,
        leaf: Mapping[str, Any] | None,
        kernel: np.ndarray,
        place: Place,
        layer: int,
    ) -> _Piece:
        """Return a module's piece; `kernel` [*in, *out] gives the lengths where it has none."""
        at = layer if place.layers is not None else ...
        inputs, outputs = (
            math.prod(kernel.shape[: place.inputs]),
            math.prod(kernel.shape[place.inputs :]),
        )
        site = lora.site(target, len(place.names)) if leaf is not None else None
        rank = site.ranks[layer] if site is not None else 0
        lengths = np.asarray(output_lengths(jnp.asarray(kernel), place.inputs)).reshape(-1)
        if leaf is None or site is None or not rank:
            empty = np.zeros((inputs, 0), np.float32), np.zeros((0, outputs), np.float32)
            return cls(0, 0.0, 0.0, *empty, lengths, outputs)
        a = np.asarray(leaf["a"][at], np.float32).reshape(inputs, -1)[:, :rank]
        b = np.asarray(leaf["b"][at], np.float32).reshape(-1, outputs)[:rank]
        if "magnitude" in leaf:
            lengths = np.asarray(leaf["magnitude"][at], np.float32).reshape(-1)
        alpha = site.alphas[layer]
        return cls(rank, alpha, lora.scale_of(rank, alpha), a, b, lengths, outputs)
