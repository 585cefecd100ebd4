"""An adapter's tensors by PEFT's names, read into what a native model trains."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from bridges.adapter_places import Place, lora_of, places, spelled
from bridges.adapter_settings import RESIDUAL, AdapterSettings
from bridges.adapter_writing import PREFIX, row_tensor, whole_slots, whole_tensors
from bridges.family import family_of
from bridges.table import Tensors, flat
from dew.errors import InputRefused, WeightMismatch, listed, shown
from dew.inference.bundle import Bundle
from dew.nn.lora import WHOLE, LoRA, found_module, path_of, replaced

_LOW = re.compile(r"(.*)\.lora_(A|B)\.weight")
_MAGNITUDE = re.compile(r"(.*)\.lora_magnitude_vector(?:\.weight)?")


@dataclass(frozen=True)
class Stored:
    """The tensors of an adapter, sorted by what they are.

    Attributes:
        tensors: the open file.
        low: module to its side, "A" or "B", to the tensor's name.
        magnitudes: module to the tensor's name.
        whole: a parameter of the base model to the tensor's name.
        strange: names that are none of these.
    """

    tensors: Tensors
    low: Mapping[str, Mapping[str, str]]
    magnitudes: Mapping[str, str]
    whole: Mapping[str, str]
    strange: tuple[str, ...]

    @classmethod
    def of(cls, tensors: Tensors, named: Callable[[str], str] = str) -> Stored:
        """Return the tensors of an open file; `named` gives a module's present name."""
        low: dict[str, dict[str, str]] = {}
        magnitudes, whole, strange = {}, {}, []
        for full in tensors.names():
            name = named(full.removeprefix(PREFIX))
            if not full.startswith(PREFIX) or ".lora_embedding_" in name:
                strange.append(full)
            elif match := _LOW.fullmatch(name):
                low.setdefault(match[1], {})[match[2]] = full
            elif match := _MAGNITUDE.fullmatch(name):
                magnitudes[match[1]] = full
            elif ".original_module." not in name:
                # With `bias: all` PEFT writes the biases of saved modules once more.
                saved = name.replace(".modules_to_save.", ".").replace(".base_layer.", ".")
                whole[saved] = full
        return cls(tensors, low, magnitudes, whole, tuple(strange))

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules with an adapter."""
        return tuple(self.low)

    def read(self, name: str) -> np.ndarray:
        """Return a tensor as float32."""
        return np.asarray(self.tensors.read(name)).astype(np.float32)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return tuple(self.tensors.info(name).shape)


def read_native(
    bundle: Bundle, stored: Stored, settings: AdapterSettings
) -> tuple[LoRA, dict[str, Any]]:
    """Return an adapter's settings and its trained parameters.

    Args:
        bundle: the base model.
        stored: the adapter's tensors.
        settings: its config.

    Raises:
        WeightMismatch: tensors that do not fit the model, all in one message.
        InputRefused: see `bridges.adapter_places.lora_of`.
    """
    present, known = frozenset(stored.modules), places(bundle)
    settings = spelled(bundle, settings, known)
    lora = lora_of(bundle, settings, present)
    here = [place for place in known if set(place.ours) & set(lora.targets)]
    problems = _problems(bundle, stored, settings, lora, here)
    if problems:
        count = f"{len(problems)} tensor{'s do' if len(problems) > 1 else ' does'}"
        raise WeightMismatch(listed(f"{count} not fit the model:", problems))
    if not here:
        raise InputRefused("holds no adapter for this model")
    read = {
        name: _sides(bundle, stored, settings, place, n, name)
        for place in here
        for n, name in enumerate(place.names)
        if name in present
    }
    if settings.start in RESIDUAL:
        settings = doubled(settings)
        lora = lora_of(bundle, settings, present)
    tree: dict[str, Any] = {}
    for place in here:
        for target, leaf in _leaves(bundle, place, lora, read).items():
            tree = replaced(tree, path_of(target), leaf)
    if lora.whole:
        tree[WHOLE] = _whole(bundle, stored, lora)
    return lora, tree


def doubled(settings: AdapterSettings) -> AdapterSettings:
    """Return the settings at twice the rank and the same scale, over the untouched base weights.

    An adapter that began with factors of the weights, B0 A0, is as good as one of B beside -B0
    and A over A0 over the weights themselves.
    """
    factor = math.sqrt(2) if settings.rslora else 2.0
    return replace(
        settings,
        rank=2 * settings.rank,
        alpha=factor * settings.alpha,
        ranks={name: 2 * rank for name, rank in settings.ranks.items()},
        alphas={name: factor * alpha for name, alpha in settings.alphas.items()},
        start=True,
    )


def _wanted(
    bundle: Bundle,
    stored: Stored,
    settings: AdapterSettings,
    lora: LoRA,
    here: Sequence[Place],
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of every tensor that the adapter must hold."""
    shapes = flat(bundle.model.parameter_shapes())
    for place in here:
        inputs, outputs = _sizes(shapes, place)
        for name in place.names:
            if name not in stored.low and not settings.chooses(name):
                continue
            rank = settings.rank_of(name)
            yield f"{name}.lora_A.weight", (rank, inputs)
            yield f"{name}.lora_B.weight", (sum(outputs), rank)
            if lora.dora:
                yield f"{name}.lora_magnitude_vector", (sum(outputs),)


def _problems(
    bundle: Bundle,
    stored: Stored,
    settings: AdapterSettings,
    lora: LoRA,
    here: Sequence[Place],
) -> list[str]:
    """Return a line for each missing, misshapen and left-over tensor."""
    found = {
        f"{m}.lora_{s}.weight": name for m, side in stored.low.items() for s, name in side.items()
    }
    found |= {f"{m}.lora_magnitude_vector": name for m, name in stored.magnitudes.items()}
    left = {**found, **stored.whole}
    missing, misshapen = [], []

    def met(name: str, shape: tuple[int, ...]) -> None:
        full = left.pop(name, None)
        if full is None:
            missing.append(f"missing     {PREFIX}{name} {shape}")
        elif stored.shape(full) != shape:
            misshapen.append(f"misshapen   {full}: wanted {shape}, found {stored.shape(full)}")

    for name, shape in _wanted(bundle, stored, settings, lora, here):
        met(name, shape)
    for name, array in whole_tensors(bundle, lora):
        met(name, array.shape)
    extra = [*left.values(), *stored.strange]
    return (
        missing
        + misshapen
        + [f"left over   {shown(full)[1:-1]} {stored.shape(full)}" for full in extra]
    )


def _sizes(shapes: Mapping[str, Any], place: Place) -> tuple[int, list[int]]:
    """Return the inputs of a place, and the outputs of each module that it holds."""
    outputs, inputs = [], 0
    for target in place.ours:
        shape = shapes[f"{path_of(target)}/kernel"].shape[place.layers is not None :]
        inputs = math.prod(shape[: place.inputs])
        outputs.append(math.prod(shape[place.inputs :]))
    return inputs, outputs


def _sides(
    bundle: Bundle,
    stored: Stored,
    settings: AdapterSettings,
    place: Place,
    layer: int,
    name: str,
) -> dict[str, np.ndarray]:
    """Return A [R, inputs], B [outputs, R] and the magnitudes of one module."""
    found = {side: stored.read(full) for side, full in stored.low[name].items()}
    if settings.start in RESIDUAL:
        weight = _weight(bundle, place, layer)
        a, b = first_factors(weight, settings, name)
        found = {"A": np.concatenate([found["A"], a]), "B": np.concatenate([found["B"], -b], 1)}
    if name in stored.magnitudes:
        found["M"] = stored.read(stored.magnitudes[name])
    return found


def first_factors(
    weight: np.ndarray, settings: AdapterSettings, module: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the A and B that an adapter of `RESIDUAL` began with, of a weight [outputs, inputs].

    Source: `pissa_init` and `olora_init` of peft 0.21.
    """
    rank, wide = settings.rank_of(module), np.asarray(weight, np.float32)
    if settings.start == "olora":
        q, r = np.linalg.qr(wide)
        return r[:rank], q[:, :rank]
    left, values, right = np.linalg.svd(wide, full_matrices=False)
    roots = np.sqrt(values[:rank] / np.float32(settings.scale_of(module)))
    return roots[:, None] * right[:rank], left[:, :rank] * roots


def _weight(bundle: Bundle, place: Place, layer: int) -> np.ndarray:
    """Return a module's weight [outputs, inputs]."""
    index = () if place.layers is None else (layer,)
    whole = row_tensor(place.row, bundle.variables["params"], index)
    return whole.T if family_of(bundle.config).conv1d else whole


def _leaves(
    bundle: Bundle, place: Place, lora: LoRA, read: Mapping[str, Mapping[str, np.ndarray]]
) -> dict[str, dict[str, Any]]:
    """Return the trained leaves of each module of a place."""
    shapes = flat(bundle.model.parameter_shapes())
    stacked, lead = place.layers is not None, (() if place.layers is None else (place.layers,))
    rank = max(lora.site(place.ours[0], len(place.names)).ranks)
    _, outputs = _sizes(shapes, place)
    found: dict[str, dict[str, Any]] = {}
    for number, target in enumerate(place.ours):
        kernel = found_module(bundle.variables["params"], path_of(target))["kernel"]
        shape = kernel.shape[stacked:]
        into, out = shape[: place.inputs], shape[place.inputs :]
        a = np.zeros((len(place.names), math.prod(into), rank), np.float32)
        b = np.zeros((len(place.names), rank, outputs[number]), np.float32)
        m = np.zeros((len(place.names), outputs[number]), np.float32)
        for layer, name in enumerate(place.names):
            if name not in read:
                m[layer] = 1.0
                continue
            sides = read[name]
            own = len(sides["A"])
            a[layer, :, :own] = sides["A"].T
            b[layer, :own] = place.cut(sides["B"], outputs)[number].T
            if "M" in sides:
                m[layer] = place.cut(sides["M"], outputs)[number]
        found[target] = {"b": jnp.asarray(b.reshape(*lead, rank, *out))}
        if number == 0:
            found[target]["a"] = jnp.asarray(a.reshape(*lead, *into, rank))
        if lora.dora:
            found[target]["magnitude"] = jnp.asarray(m.reshape(*lead, *out))
    return found


def _whole(bundle: Bundle, stored: Stored, lora: LoRA) -> dict[str, Any]:
    """Return the leaves that are trained whole, with the base's values where none are stored."""
    params = bundle.variables["params"]
    leaves = {path: np.array(found_module(params, path), np.float32) for path in lora.whole}
    for name, row, index in whole_slots(bundle, lora):
        tensor = stored.read(stored.whole[name])
        parts = [tensor]
        if len(row.leaves) > 1:
            outs = [row.move.out(leaves[path][index]) for path in row.leaves]
            parts = row.move.cut(tensor, [out.shape[row.move.axis] for out in outs])
        for path, part in zip(row.leaves, parts, strict=True):
            leaves[path][index] = row.move.into(part)
    return {path: jnp.asarray(leaf) for path, leaf in leaves.items()}
