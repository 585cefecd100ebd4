"""Low-rank adapters in PEFT's layout: laid over a bundle, written from one, merged into it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from bridges.adapter_bundle import (
    LOW,
    AdaptedBundle,
    Trained,
    merged_bundle,
    plain_of,
)
from bridges.adapter_config import CONFIG, adapter_config, read_adapter_config, refuse_targets
from bridges.adapter_names import torch_name
from bridges.adapter_places import adapter_targets, lora_of, places, spelled
from bridges.adapter_reading import Stored, read_native
from bridges.adapter_settings import HEADED, TASK_HEADS, AdapterSettings, ends
from bridges.adapter_writing import written_native
from bridges.family import family_of
from bridges.files.regular_file import contained, shown_path
from bridges.files.swap import staged
from bridges.files.tensors import open_tensors
from bridges.files.writer import Planned, json_bytes, write_file, write_safetensors
from bridges.table import LAYER, Tensors
from dew.errors import InputRefused, WeightMismatch
from dew.inference.bundle import Bundle
from dew.nn.lora import RESIDUAL, LoRA
from dew.nn.lora_settled import settled

__all__ = [
    "adapter_targets",
    "export_adapter",
    "laid_over",
    "load_adapter",
    "lora_of",
    "merge",
    "places",
]

WEIGHTS = "adapter_model.safetensors"
DEFAULT = "default"
# PEFT's task types, which add the heads of a task to the modules that are saved.
TASK_TYPES = {
    "text-generation": "CAUSAL_LM",
    "text2text-generation": "SEQ_2_SEQ_LM",
}
HEAD_TASK_TYPES = {
    "text-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
    "question-answering": "QUESTION_ANS",
}


def load_adapter(
    bundle: Bundle, directory: str | os.PathLike[str], name: str = DEFAULT
) -> AdaptedBundle:
    """Lay a PEFT LoRA adapter over a bundle.

    The first adapter is active; one of another name that follows is not, as in PEFT, until
    `bundle.set_adapter(name)`.

    Args:
        bundle: the base model, or one with adapters already; it stays as it is.
        directory: a folder with adapter_config.json and adapter_model.safetensors.
        name: the adapter's; one of the same name is replaced.

    Returns:
        A bundle with the adapter under `variables["lora"]` and its settings under `adapter`; see
        `bridges.adapter_bundle.NamedAdapters`.

    Raises:
        InputRefused: a config that dew does not follow, or no adapter there.
        WeightMismatch: tensors that do not fit the model, all in one message.
    """
    if _is_traced(bundle):
        from bridges.torch.lora_files import load_traced_adapter

        traced: Any = load_traced_adapter(bundle, directory, name)
        return traced
    folder, base = Path(os.fspath(directory)), plain_of(bundle)
    settings = read_adapter_config(folder, base.source)
    stored = Stored.of(opened(folder), lambda name: torch_name(base, name))
    where = shown_path(folder / WEIGHTS)
    try:
        lora, trained = read_native(base, stored, settings)
    except WeightMismatch as error:
        raise WeightMismatch(f"{where}: {error}") from None
    settings = spelled(base, settings, places(base))
    refuse_targets(settings, stored.modules, shown_path(folder / CONFIG))
    return _added(bundle, base, name, Trained(lora, trained))


def laid_over(
    bundle: Bundle, lora: LoRA, trained: Mapping[str, Any], name: str = DEFAULT
) -> AdaptedBundle:
    """Return a bundle with an adapter that was trained, as `load_adapter` does.

    Args:
        bundle: the base model, or one with adapters already; it stays as it is.
        lora: the settings that it was trained with.
        trained: its parameters, such as a trained state's `params["params"]`.
        name: the adapter's.
    """
    base = plain_of(bundle)
    if lora.start in RESIDUAL:
        lora, trained = settled(lora, trained, base.variables["params"])
    return _added(bundle, base, name, Trained(lora, trained))


def export_adapter(bundle: Bundle, directory: str | os.PathLike[str]) -> None:
    """Write a bundle's active adapter as PEFT reads it, the tokenizer beside it.

    Rank and alpha come from the bundle, nobody has to repeat them. Where the checkpoint fuses
    query, key and value and their adapters do not share their first half, they become one of the
    summed rank.

    Args:
        bundle: what holds `variables["lora"]` and its `LoRA` settings under `adapter`.
        directory: the folder; other files in it stay.

    Raises:
        InputRefused: a bundle without an adapter.
        OSError: the disk is full or fails; the old adapter is as it was.
    """
    if _is_traced(bundle):
        from bridges.torch.lora_files import export_traced_adapter

        export_traced_adapter(bundle, directory)
        return
    if bundle.adapter is None or LOW not in bundle.variables:
        raise InputRefused("the bundle has no adapter; bridges.export writes whole models")
    tensors, numbers = written_native(bundle, bundle.adapter, bundle.variables[LOW])
    settings = settings_of(bundle, bundle.adapter, numbers)
    config = adapter_config(
        settings,
        source=bundle.source,
        conv1d=family_of(bundle.config).conv1d,
        task_type=_task_type(bundle),
    )
    processor: Any = bundle.processor
    files = dict(processor.files) if processor is not None else {}
    write_folder(tensors, config, files, directory)


def write_folder(
    tensors: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    files: Mapping[str, bytes],
    directory: str | os.PathLike[str],
) -> None:
    """Write an adapter's folder aside and put it in place; other files in it stay.

    Args:
        tensors: by PEFT's names.
        config: adapter_config.json.
        files: more files, by name.
        directory: the folder.

    Raises:
        OSError: the disk is full or fails; the old adapter is as it was.
    """
    planned = [Planned(name, array.shape, array.dtype) for name, array in tensors.items()]
    beside = {**files, CONFIG: json_bytes(dict(config))}
    with staged(Path(os.fspath(directory)), own={*beside, WEIGHTS}.__contains__) as folder:
        write_safetensors(folder / WEIGHTS, planned, iter(tensors.items()))
        for name, data in beside.items():
            write_file(folder / name, data)


def merge(bundle: Bundle) -> Bundle:
    """Return a plain model whose kernels hold the active adapter, summed in float32.

    Raises:
        InputRefused: a bundle without an adapter.
    """
    if _is_traced(bundle) and bundle.adapter is not None:
        return bundle.merged
    return merged_bundle(bundle)


def settings_of(
    bundle: Bundle, lora: LoRA, numbers: Mapping[str, tuple[int, float]]
) -> AdapterSettings:
    """Return PEFT's settings for modules of these ranks and alphas.

    Args:
        bundle: the model.
        lora: the adapter's settings.
        numbers: full name of each adapted module to its rank and alpha.
    """
    modules = {place.module: place.names for place in places(bundle)}
    known = [name for names in modules.values() for name in names]
    targets: dict[str, None] = {}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    for module, names in modules.items():
        here = [name for name in names if name in numbers]
        whole = len(here) == len(names)
        for name in _target_names(module, here, known, numbers) if whole else here:
            targets[name] = None
        same = len({numbers[name] for name in here}) == 1
        for name in here[:1] if whole and same else here:
            rank, alpha = numbers[name]
            key = _pattern(module, known, names) if whole and same else re.escape(name)
            if rank != lora.rank:
                ranks[key] = rank
            if alpha != lora.alpha:
                alphas[key] = alpha
    return AdapterSettings(
        rank=lora.rank,
        alpha=lora.alpha,
        targets=tuple(targets),
        ranks=ranks,
        alphas=alphas,
        rslora=lora.rslora,
        dropout=lora.dropout,
        dora=lora.dora,
        saved=lora.saved,
        bias=lora.bias,
    )


def task_heads(bundle: Bundle) -> tuple[str, ...]:
    """Return the heads that are trained whole beside an adapter: those of classes and spans."""
    if not set(bundle.tasks) & HEADED:
        return ()
    modules = [row.theirs for row in family_of(bundle.config).rows(bundle.model)]
    return tuple(head for head in sorted(TASK_HEADS) if any(m.startswith(head) for m in modules))


def _target_names(
    module: str, here: Sequence[str], known: Sequence[str], numbers: Mapping[str, Any]
) -> Sequence[str]:
    """Return the shortest names that mean one place's modules, and no others of the model."""
    for name in (module.rpartition(".")[2], module.partition(f"{LAYER}.")[2]):
        if name and all(other in numbers for other in known if ends(other, name)):
            return (name,)
    return here


def _pattern(module: str, known: Sequence[str], names: Sequence[str]) -> str:
    """Return the shortest expression that means all modules of one place, and no others."""
    for name in (module.rpartition(".")[2], module.partition(f"{LAYER}.")[2]):
        if name and {other for other in known if ends(other, name)} == set(names):
            return name
    return re.escape(module).replace(re.escape(LAYER), r"\d+")


def _added(bundle: Bundle, base: Bundle, name: str, made: Trained) -> AdaptedBundle:
    """Return a bundle with one more adapter, active if none of another name was there."""
    others: Mapping[str, Trained] = bundle.adapters if isinstance(bundle, AdaptedBundle) else {}
    alone = not set(others) - {name}
    active = name if alone or not isinstance(bundle, AdaptedBundle) else bundle.active
    return AdaptedBundle.over(base, {**others, name: made}, active)


def _is_traced(bundle: Any) -> TypeGuard[Any]:
    from bridges.torch.checkpoint import TracedBundle

    return isinstance(bundle, TracedBundle)


def opened(folder: Path) -> Tensors:
    """Open the adapter's tensors."""
    if not os.path.lexists(folder / WEIGHTS) and os.path.lexists(folder / "adapter_model.bin"):
        return open_tensors(contained(folder, "adapter_model.bin"))
    return open_tensors(contained(folder, WEIGHTS))


def _task_type(bundle: Bundle) -> str | None:
    """Return PEFT's name for what the base does; of a head, only where the adapter holds one."""
    task = next(iter(bundle.tasks), "")
    if task in TASK_TYPES:
        return TASK_TYPES[task]
    return HEAD_TASK_TYPES.get(task) if bundle.adapter.saved else None
