"""A traced module's adapters in PEFT's folder: read, written, merged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bridges.adapter_config import (
    CONFIG,
    AdapterSettings,
    adapter_config,
    read_adapter_config,
    refuse_targets,
)
from bridges.files.regular_file import contained, shown_path
from bridges.files.swap import staged
from bridges.files.tensors import Tensors, open_tensors
from bridges.files.writer import Planned, json_bytes, write_file, write_safetensors
from bridges.torch.checkpoint import TracedBundle
from bridges.torch.lora import MERGED, AdaptedBundle, Adapter, adapted, adapter_of
from dew.errors import InputRefused, WeightMismatch, listed

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
SIDES = ("A", "B")
CAUSAL, SEQUENCE = "CAUSAL_LM", "SEQ_2_SEQ_LM"


def export_traced_adapter(bundle: TracedBundle, directory: str | os.PathLike[str]) -> None:
    """Write a bundle's adapter as PEFT reads it, the tokenizer beside it.

    Args:
        bundle: from `bridges.torch.lora.adapted`.
        directory: the folder; other files in it stay.

    Raises:
        InputRefused: a bundle without an adapter.
        OSError: the disk is full or fails; the old adapter is as it was.
    """
    if not isinstance(bundle, AdaptedBundle):
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
        adapters: their A [R, inputs] and B [outputs, R].
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
    planned = [Planned(name, array.shape, array.dtype) for name, array in tensors.items()]
    ranks = {module: int(adapters[module]["A"].shape[0]) for module in adapter.modules}
    others = {module: rank for module, rank in ranks.items() if rank != adapter.rank}
    settings = AdapterSettings(
        rank=adapter.rank,
        alpha=adapter.alpha,
        targets=adapter.modules,
        ranks=others,
        alphas={module: adapter.scale * rank for module, rank in others.items()},
    )
    transposed = set(adapter.modules) == adapter.transposed
    config = adapter_config(settings, source=source, conv1d=transposed)
    own = {"task_type": task_type, "lora_dropout": adapter.dropout}
    beside = {**(files or {}), CONFIG: json_bytes({**config, **own})}
    with staged(Path(os.fspath(directory)), own={*beside, WEIGHTS}.__contains__) as folder:
        write_safetensors(folder / WEIGHTS, planned, iter(tensors.items()))
        for name, data in beside.items():
            write_file(folder / name, data)


def load_traced_adapter(bundle: TracedBundle, directory: str | os.PathLike[str]) -> AdaptedBundle:
    """Lay a PEFT LoRA adapter over a traced bundle.

    Modules with a rank or an alpha of their own are brought to one scale, folded into B.

    Args:
        bundle: the base model; it stays as it is.
        directory: a folder with adapter_config.json and adapter_model.safetensors.

    Raises:
        InputRefused: a config that dew does not follow, or modules that it does not adapt.
        WeightMismatch: tensors that do not fit the model, all in one message.
    """
    folder = Path(os.fspath(directory))
    settings = read_adapter_config(folder, bundle.source)
    where = shown_path(folder / WEIGHTS)
    tensors = open_tensors(contained(folder, WEIGHTS))
    modules, strange = _modules(tensors)
    if strange or not modules:
        lines = [f"left over  {name}" for name in strange] or ["no lora_A and lora_B at all"]
        raise WeightMismatch(listed(f"{where}: not a LoRA adapter of a module's weights:", lines))
    refuse_targets(settings, modules, shown_path(folder / CONFIG))
    rank = settings.rank_of(modules[0])
    scale = settings.scale_of(modules[0])
    adapter = adapter_of(bundle, rank=rank, alpha=scale * rank, targets=modules)
    if set(adapter.modules) != set(modules):
        extra = [f"{name} has no tensors" for name in set(adapter.modules) - set(modules)]
        raise WeightMismatch(listed(f"{where}: names that end in each other:", sorted(extra)))
    adapters = _read(tensors, adapter, settings, bundle.variables["params"], where)
    return adapted(bundle, adapter, adapters)


def _read(
    tensors: Tensors,
    adapter: Adapter,
    settings: AdapterSettings,
    params: Mapping[str, Any],
    where: str,
) -> dict[str, dict[str, Any]]:
    problems, out = [], {}
    for module in adapter.modules:
        outputs, inputs = adapter.sizes(module, params)
        rank = settings.rank_of(module)
        out[module] = {}
        for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            name = f"{PREFIX}{module}.lora_{side}.weight"
            found = tuple(tensors.info(name).shape) if name in tensors.names() else None
            if found != shape:
                problems.append(f"{name}: {list(found) if found else 'absent'}, not {list(shape)}")
                continue
            factor = settings.scale_of(module) / adapter.scale if side == "B" else 1.0
            value = tensors.read(name).astype(np.float32)
            out[module][side] = jnp.array(value if factor == 1.0 else value * np.float32(factor))
    if problems:
        raise WeightMismatch(listed(f"{where}: the tensors do not fit the model:", problems))
    return out


def _modules(tensors: Tensors) -> tuple[tuple[str, ...], list[str]]:
    """Return the modules that have tensors, and the tensors that are no adapter's."""
    modules: dict[str, None] = {}
    strange = []
    for name in tensors.names():
        ending = next((e for s in SIDES if name.endswith(e := f".lora_{s}.weight")), None)
        if ending is None or not name.startswith(PREFIX):
            strange.append(name)
        else:
            modules[name.removeprefix(PREFIX).removesuffix(ending)] = None
    return tuple(modules), strange


def _task_type(bundle: TracedBundle) -> str | None:
    if not bundle.stored["generates"]:
        return None
    return SEQUENCE if bundle.config.get("is_encoder_decoder") else CAUSAL
