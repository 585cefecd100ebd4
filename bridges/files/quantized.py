"""Quantised weights shown as plain float32 ones: block-scaled fp8, AWQ and GPTQ."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bridges.config import Keys
from bridges.files.packed_weights import awq_weight, fp8_weight, gptq_weight
from bridges.files.regular_file import shown_path
from bridges.files.safetensors_file import TensorInfo
from bridges.files.tensors import Tensors
from dew.errors import InputRefused, listed, shown

KEY = "quantization_config"
METHODS = ("fp8", "awq", "gptq")
FP8 = ("float8_e4m3fn", "float8_e5m2")
SCALES = ("float32", "float16", "bfloat16", "float8_e8m0fnu")
SCALE = "_scale_inv"
ACTIVATION_SCALES = (".activation_scale", ".input_scale")
PARTS = ("qweight", "qzeros", "scales", "g_idx")


@dataclass(frozen=True)
class Quantization:
    """How a checkpoint's weights were quantised.

    Attributes:
        method: one of `METHODS`.
        bits: of a packed integer (AWQ, GPTQ).
        group: inputs that share scale and zero; None for all of them.
        shifted: whether zeros are stored less 1 (GPTQ's first format).
        block: rows and columns that share an fp8 scale; None for one scale a tensor.
    """

    method: str
    bits: int = 4
    group: int | None = None
    shifted: bool = False
    block: tuple[int, int] | None = None


def read_quantization(keys: Keys) -> Quantization | None:
    """Return how the weights of a config are quantised, or None where they are not.

    Args:
        keys: of the config.

    Raises:
        InputRefused: a method, or a variant of one, that is not dequantised.
    """
    values = keys.values.get(KEY)
    keys.only(KEY, values)  # what is read of it is read below
    if values is None:
        return None
    method = values.get("quant_method") if isinstance(values, dict) else None
    if not isinstance(method, str) or method not in METHODS:
        keys.refuse(
            KEY,
            f"dew dequantises {', '.join(METHODS)} and not {shown(method)}. Take the checkpoint "
            "that was not quantised, or load this one with transformers, call "
            "model.dequantize() and save it",
        )
    found = Keys(values, keys.where, (KEY,))
    return {"fp8": _fp8, "awq": _awq, "gptq": _gptq}[method](found)


def plain_tensors(tensors: Tensors, quantization: Quantization | None) -> Tensors:
    """Return a checkpoint's tensors, the quantised ones as float32 under their plain names.

    Args:
        tensors: the open checkpoint.
        quantization: of its config.

    Raises:
        InputRefused: tensors that belong to one weight and do not fit each other, all at once.
    """
    if quantization is None:
        return tensors
    plan = _fp8_plan if quantization.method == "fp8" else _packed_plan
    weights, problems = plan(tensors, quantization)
    if problems:
        names = tensors.names()
        where = shown_path(tensors.info(names[0]).file) if names else KEY
        raise InputRefused(
            listed(
                f"{where}: quantised tensors that do not fit each other and {KEY}. Download the "
                "folder again, or take the checkpoint that was not quantised:",
                problems,
            )
        )
    hidden = {part for weight in weights.values() for part in weight.parts}
    unused = [name for name in tensors.names() if name.endswith(ACTIVATION_SCALES)]
    if unused:
        warnings.warn(
            f"{len(unused)} scales of activations ({shown(unused[0])} ...) are not used: weights "
            "are dequantised to float32 and activations are not rounded",
            stacklevel=2,
        )
    names = [name for name in tensors.names() if name not in hidden and name not in unused]
    return _Dequantised(tensors, (*names, *weights), weights)


@dataclass(frozen=True)
class _Weight:
    """One weight: the tensors it is made of, its shape, and how."""

    parts: tuple[str, ...]
    shape: tuple[int, ...]
    make: Callable[..., np.ndarray]


@dataclass(frozen=True)
class _Dequantised:
    """Tensors of which some are made of others when they are read."""

    inner: Tensors
    listing: tuple[str, ...]
    weights: Mapping[str, _Weight]

    def names(self) -> list[str]:
        """Return the plain names."""
        return list(self.listing)

    def info(self, name: str) -> TensorInfo:
        """Return shape, dtype and file of a tensor."""
        weight = self.weights.get(name)
        if weight is None:
            return self.inner.info(name)
        file = self.inner.info(weight.parts[0]).file
        return TensorInfo(weight.shape, np.dtype(np.float32), file)

    def read(self, name: str) -> np.ndarray:
        """Return a tensor, a quantised one as a new float32 array."""
        weight = self.weights.get(name)
        if weight is None:
            return self.inner.read(name)
        try:
            made = weight.make(*(self.inner.read(part) for part in weight.parts))
        except ValueError as error:
            file = shown_path(self.inner.info(weight.parts[0]).file)
            raise InputRefused(f"{file}: tensor {shown(name)}: {error}") from None
        made = np.ascontiguousarray(made)
        made.flags.writeable = False
        return made

    def release(self, name: str) -> None:
        """Release the pages of a tensor, or of those it is made of."""
        weight = self.weights.get(name)
        for part in (name,) if weight is None else weight.parts:
            self.inner.release(part)


def _fp8(keys: Keys) -> Quantization:
    block = keys.values.get("weight_block_size")
    if block is None:
        return Quantization("fp8")
    if not isinstance(block, list) or [type(side) for side in block] != [int, int]:
        keys.refuse("weight_block_size", "expected two whole numbers")
    if min(block) < 1:
        keys.refuse("weight_block_size", "expected two whole numbers of at least 1")
    return Quantization("fp8", block=(block[0], block[1]))


def _awq(keys: Keys) -> Quantization:
    keys.only("version", "gemm", "GEMM")
    keys.only("format", "gemm", "GEMM")
    keys.only("zero_point", True)
    bits = "w_bit" if "w_bit" in keys else "bits"
    keys.only(bits, 4)
    return Quantization("awq", group=_group(keys))


def _gptq(keys: Keys) -> Quantization:
    keys.only("bits", 4, 8)
    keys.only("checkpoint_format", "gptq", "gptq_v2")
    keys.only("format", "gptq", "gptq_v2")
    keys.only("is_marlin_format", False)
    keys.only("dynamic", {})
    second = "gptq_v2" in (keys.values.get("checkpoint_format"), keys.values.get("format"))
    return Quantization("gptq", keys.integer("bits"), _group(keys), shifted=not second)


def _group(keys: Keys) -> int | None:
    """Return the inputs of a group; -1 is how both methods write one group for all."""
    key = "q_group_size" if "q_group_size" in keys else "group_size"
    if keys.values.get(key) == -1:
        return None
    return keys.integer(key)


def _fp8_plan(tensors: Tensors, quantization: Quantization) -> tuple[dict[str, _Weight], list[str]]:
    """Return each weight with a scale, and what does not fit."""
    names, weights, problems = tensors.names(), {}, []
    stored = set(names)
    for name in names:
        info = tensors.info(name)
        if name.endswith(SCALE):
            if name.removesuffix(SCALE) not in stored:
                problems.append(f"{shown(name)} scales no tensor")
            continue
        if info.dtype.name not in FP8:
            if name + SCALE in stored:
                problems.append(f"{shown(name)} has a scale but is {info.dtype}")
            continue
        if name + SCALE not in stored:
            problems.append(f"{shown(name)} is {info.dtype} and has no {shown(name + SCALE)}")
            continue
        scale = tensors.info(name + SCALE)
        problem = _fp8_problem(info.shape, scale, quantization.block)
        if problem:
            problems.append(f"{shown(name)}: {problem}")
        make = partial(fp8_weight, block=quantization.block)
        weights[name] = _Weight((name, name + SCALE), info.shape, make)
    return weights, problems


def _fp8_problem(
    shape: tuple[int, ...], scale: TensorInfo, block: tuple[int, int] | None
) -> str | None:
    """Return what is wrong with the scale of a weight of this shape, or None."""
    if scale.dtype.name not in SCALES:
        return f"its scale is {scale.dtype}, expected one of {', '.join(SCALES)}"
    if block is None:
        if math.prod(scale.shape) == 1:
            return None
        return f"its scale is {list(scale.shape)}, expected one number (no weight_block_size)"
    wanted = (
        *shape[:-2],
        *(-(-side // step) for side, step in zip(shape[-2:], block, strict=True)),
    )
    if len(shape) < 2 or scale.shape != wanted:
        return f"{list(shape)} in blocks of {list(block)} has the scale {list(scale.shape)}"
    return None


def _packed_plan(
    tensors: Tensors, quantization: Quantization
) -> tuple[dict[str, _Weight], list[str]]:
    """Return each weight that is packed, and what does not fit."""
    stored, weights, problems = set(tensors.names()), {}, []
    stems = [name.removesuffix("qweight") for name in tensors.names() if name.endswith(".qweight")]
    for stem in stems:
        absent = [part for part in PARTS[:3] if stem + part not in stored]
        if absent or stem + "weight" in stored:
            found = f"no {', '.join(absent)}" if absent else "a plain weight"
            problems.append(f"{shown(stem + 'qweight')} has {found} beside it")
            continue
        infos = {p: tensors.info(stem + p) for p in PARTS if stem + p in stored}
        size = _packed_shape(infos, quantization)
        if isinstance(size, str):
            problems.append(f"{shown(stem + 'qweight')}: {size}")
            continue
        parts = tuple(stem + part for part in infos)
        weights[stem + "weight"] = _Weight(parts, size, _maker(quantization, size))
    loose = [
        name
        for name in tensors.names()
        if name.endswith((".qzeros", ".g_idx"))
        and f"{name.rpartition('.')[0]}.qweight" not in stored
    ]
    return weights, problems + [f"{shown(name)} has no qweight beside it" for name in loose]


def _maker(quantization: Quantization, shape: tuple[int, ...]) -> Callable[..., np.ndarray]:
    """Return what makes a weight of a shape from its parts."""
    group = quantization.group or shape[1]
    if quantization.method == "awq":
        return lambda weight, zeros, scales: awq_weight(weight, zeros, scales, group)
    bits, shifted = quantization.bits, quantization.shifted
    return lambda weight, zeros, scales, groups=None: gptq_weight(
        weight, zeros, scales, groups, group=group, bits=bits, shifted=shifted
    )


def _packed_shape(
    infos: Mapping[str, TensorInfo], quantization: Quantization
) -> tuple[int, int] | str:
    """Return the shape [outputs, inputs] of a packed weight, or what does not fit."""
    fit = 32 // quantization.bits
    shapes = {part: info.shape for part, info in infos.items()}
    for part, info in infos.items():
        wanted: Any = SCALES[:3] if part == "scales" else ("int32",)
        if info.dtype.name not in wanted or len(info.shape) != (1 if part == "g_idx" else 2):
            return f"{part} is {info.dtype} {list(info.shape)}"
    rows, columns = shapes["qweight"]
    if quantization.method == "awq":
        if "g_idx" in infos:
            return "it has g_idx, which AWQ does not use"
        inputs, outputs = rows, columns * fit
    else:
        inputs, outputs = rows * fit, columns
    groups = -(-inputs // quantization.group) if quantization.group else 1
    expected: dict[str, tuple[int, ...]] = {
        "qzeros": (groups, outputs // fit),
        "scales": (groups, outputs),
    }
    if "g_idx" in infos:
        expected["g_idx"] = (inputs,)
    wrong = [
        f"{part} is {list(shapes[part])}, expected {list(shape)}"
        for part, shape in expected.items()
        if shapes[part] != shape
    ]
    if outputs % fit:
        wrong.append(f"{outputs} outputs are no multiple of {fit}")
    return "; ".join(wrong) if wrong else (outputs, inputs)
