"""A traced module's adapters in PEFT's folder: read and written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bridges.adapter_config import CONFIG, adapter_config, read_adapter_config, refuse_targets
from bridges.adapter_reading import Stored, doubled, first_factors
from bridges.adapter_settings import RESIDUAL, AdapterSettings
from bridges.adapter_writing import PREFIX
from bridges.adapters import WEIGHTS, opened, write_folder
from bridges.files.regular_file import shown_path
from bridges.torch.checkpoint import TracedBundle
from bridges.torch.kinds import CONV1D, LINEAR
from bridges.torch.lora import (
    MERGED,
    WHOLE,
    AdaptedBundle,
    Adapter,
    adapted,
    adapter_from,
    module_kinds,
)
from dew.errors import InputRefused, WeightMismatch, listed, shown

SIDES = ("A", "B")
CAUSAL, SEQUENCE = "CAUSAL_LM", "SEQ_2_SEQ_LM"


def export_traced_adapter(bundle: TracedBundle, directory: str | os.PathLike[str]) -> None:
    """Write a bundle's active adapter as PEFT reads it, the tokenizer beside it.

    Args:
        bundle: from `bridges.torch.lora.adapted`.
        directory: the folder; other files in it stay.

    Raises:
        InputRefused: a bundle without an adapter.
        OSError: the disk is full or fails; the old adapter is as it was.
    """
    if not isinstance(bundle, AdaptedBundle) or bundle.adapter is None:
        raise InputRefused("the bundle has no adapter; bridges.export writes whole models")
    processor: Any = bundle.processor
    write_adapter(
        bundle.adapter,
        bundle.variables[MERGED],
        directory,
        source=bundle.source,
        task_type=_task_type(bundle),
        files={} if processor is None else processor.files,
    )


def write_adapter(
    adapter: Adapter,
    adapters: Mapping[str, Mapping[str, Any]],
    directory: str | os.PathLike[str],
    *,
    source: str = "",
    task_type: str | None = None,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write adapters of any traced module as PEFT's folder.

    Args:
        adapter: which modules they belong to.
        adapters: their A [R, inputs] and B [outputs, R], as `Adapter.init` lays them out.
        directory: the folder; other files in it stay.
        source: where the base model came from.
        task_type: PEFT's name for what the base does, or None.
        files: more files to write, by name.

    Raises:
        OSError: the disk is full or fails; the old adapter is as it was.
    """
    tensors = {
        f"{PREFIX}{module}.lora_{side}.weight": np.asarray(adapters[module][side], np.float32)
        for module in adapter.modules
        for side in SIDES
    }
    for module in adapter.modules if adapter.dora else ():
        name = f"{PREFIX}{module}.lora_magnitude_vector"
        tensors[name] = np.asarray(adapters[module]["M"], np.float32)
    for leaf, value in adapters.get(WHOLE, {}).items():
        module, _, last = leaf.rpartition(".")
        inner = ".base_layer" if last == "bias" and module in adapter.modules else ""
        tensors[f"{PREFIX}{module}{inner}.{last}"] = np.asarray(value, np.float32)
    ranks = {module: int(adapters[module]["A"].shape[0]) for module in adapter.modules}
    settings = AdapterSettings(
        rank=adapter.rank,
        alpha=adapter.alpha,
        targets=adapter.modules,
        ranks={re.escape(m): rank for m, rank in ranks.items() if rank != adapter.rank},
        alphas={re.escape(m): alpha for m, alpha in adapter.alphas.items()},
        rslora=adapter.rslora,
        dropout=adapter.dropout,
        dora=adapter.dora,
        saved=adapter.saved,
        bias=adapter.bias,
    )
    transposed = set(adapter.modules) == adapter.transposed
    config = adapter_config(settings, source=source, conv1d=transposed, task_type=task_type)
    write_folder(tensors, config, files or {}, directory)


def load_traced_adapter(
    bundle: TracedBundle, directory: str | os.PathLike[str], name: str = "default"
) -> AdaptedBundle:
    """Lay a PEFT LoRA adapter over a traced bundle.

    Args:
        bundle: the base model, or one with adapters already; it stays as it is.
        directory: a folder with adapter_config.json and adapter_model.safetensors.
        name: the adapter's.

    Raises:
        InputRefused: a config that dew does not follow, or modules that it does not adapt.
        WeightMismatch: tensors that do not fit the model, all in one message.
    """
    folder = Path(os.fspath(directory))
    settings = read_adapter_config(folder, bundle.source)
    where = shown_path(folder / WEIGHTS)
    stored = Stored.of(opened(folder))
    if stored.strange or not stored.modules:
        lines = [f"left over  {shown(n)[1:-1]}" for n in stored.strange]
        lines = lines or ["no lora_A and lora_B at all"]
        raise WeightMismatch(listed(f"{where}: not a LoRA adapter of a module's weights:", lines))
    refuse_targets(settings, stored.modules, shown_path(folder / CONFIG))
    base = bundle.base if isinstance(bundle, AdaptedBundle) else bundle
    adapter = adapter_from(base, settings, stored.modules)
    _refuse_misfits(base, stored, settings, adapter, where)
    adapters = _read(base, stored, settings, adapter)
    if settings.start in RESIDUAL:
        adapter = adapter_from(base, doubled(settings), stored.modules)
    return adapted(bundle, adapter, adapters, name)


def _refuse_misfits(
    base: TracedBundle, stored: Stored, settings: AdapterSettings, adapter: Adapter, where: str
) -> None:
    """Refuse missing, misshapen and left-over tensors, all at once."""
    params, problems = base.variables["params"], []
    left = dict(stored.whole)

    def met(label: str, full: str | None, shape: tuple[int, ...]) -> None:
        found = None if full is None else list(stored.shape(full))
        if found != list(shape):
            problems.append(f"{label}: {found or 'absent'}, not {list(shape)}")

    for module in (*adapter.modules, *_forgotten(base, settings, adapter)):
        name = f"{PREFIX}{module}"
        if module not in adapter.modules:
            problems.append(f"{name}.lora_A.weight: absent")
            continue
        outputs, inputs = adapter.sizes(module, params)
        rank = settings.rank_of(module)
        for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            met(f"{name}.lora_{side}.weight", stored.low[module].get(side), shape)
        if adapter.dora:
            met(f"{name}.lora_magnitude_vector", stored.magnitudes.get(module), (outputs,))
    for leaf in adapter.whole:
        met(f"{PREFIX}{leaf}", left.pop(leaf, None), tuple(params[leaf].shape))
    others = [
        full for m, full in stored.magnitudes.items() if not adapter.dora or m not in stored.low
    ]
    problems += [f"left over  {shown(full)[1:-1]}" for full in (*left.values(), *others)]
    if problems:
        raise WeightMismatch(listed(f"{where}: the tensors do not fit the model:", problems))


def _forgotten(base: TracedBundle, settings: AdapterSettings, adapter: Adapter) -> list[str]:
    """Return the linear maps that a config names and that have no tensors."""
    if settings.targets is None:
        return []
    return [
        name
        for name, kind in module_kinds(base).kinds.items()
        if kind in (LINEAR, CONV1D) and name not in adapter.modules and settings.chooses(name)
    ]


def _read(
    base: TracedBundle, stored: Stored, settings: AdapterSettings, adapter: Adapter
) -> dict[str, dict[str, Any]]:
    """Return the trained parameters of an adapter whose tensors fit."""
    params = base.variables["params"]
    out: dict[str, dict[str, Any]] = {}
    for module, leaf in adapter.weights:
        pair = {side: stored.read(stored.low[module][side]) for side in SIDES}
        if settings.start in RESIDUAL:
            weight = np.asarray(params[leaf], np.float32)
            weight = weight.T if module in adapter.transposed else weight
            a, b = first_factors(weight, settings, module)
            pair = {"A": np.concatenate([pair["A"], a]), "B": np.concatenate([pair["B"], -b], 1)}
        if adapter.dora:
            pair["M"] = stored.read(stored.magnitudes[module])
        out[module] = {side: jnp.array(value) for side, value in pair.items()}
    if adapter.whole:
        out[WHOLE] = {leaf: jnp.array(stored.read(stored.whole[leaf])) for leaf in adapter.whole}
    return out


def _task_type(bundle: TracedBundle) -> str | None:
    if not bundle.stored["generates"]:
        return None
    return SEQUENCE if bundle.config.get("is_encoder_decoder") else CAUSAL
