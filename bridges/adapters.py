"""Low-rank adapters in PEFT's layout: laid over a bundle, written from one, merged into it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from bridges.adapter_config import (
    ALL,
    CONFIG,
    AdapterSettings,
    adapter_config,
    ends,
    read_adapter_config,
    refuse_targets,
)
from bridges.family import family_of
from bridges.files.regular_file import contained, shown_path
from bridges.files.swap import staged
from bridges.files.tensors import open_tensors
from bridges.files.writer import Planned, json_bytes, write_file, write_safetensors
from bridges.moves import TRANSPOSE, Move, in_turn, merge_heads, split_by
from bridges.table import LAYER, Row, Tensors, into_tree, nested, out_of_tree
from dew.errors import InputRefused, UnknownName, WeightMismatch, nearest, shown
from dew.inference.bundle import Bundle
from dew.nn.lora import ADAPTED, LoRA, merged

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."


@dataclass(frozen=True)
class Place:
    """One linear map of the checkpoint where an adapter can sit.

    Attributes:
        module: its name, `{layer}` for the layer's number.
        ours: the dew modules that it holds, as in `dew.nn.lora.ADAPTED`; several if it is fused.
        groups: how often the modules of a fused map stand in turn, see `bridges.moves.Move`.
    """

    module: str
    ours: tuple[str, ...]
    groups: int = 1


def places(bundle: Bundle) -> tuple[Place, ...]:
    """Return where an adapter can sit, in the order of the family's weight table."""
    found = []
    for row in family_of(bundle.config).rows(bundle.model):
        kernels = [path for path in row.leaves if path.endswith("/kernel")]
        ours = tuple(path.removeprefix("layers/").removesuffix("/kernel") for path in kernels)
        if row.stacked and ours and all(module in ADAPTED for module in ours):
            found.append(Place(row.theirs.removesuffix(".weight"), ours, row.move.groups))
    return tuple(found)


def adapter_targets(bundle: Bundle, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return dew's modules for module names of the checkpoint.

    Args:
        bundle: the base model.
        names: names or the ends of names, such as `q_proj`; none, or `all-linear`, means every
            linear map of the layers.

    Raises:
        UnknownName: a name that no module of the model ends in.
    """
    known = places(bundle)
    if not names or list(names) == [ALL]:
        return tuple(module for place in known for module in place.ours)
    for name in names:
        if not any(ends(place.module, name) for place in known):
            short = [place.module.rpartition(".")[2] for place in known]
            raise UnknownName(
                f"no module {shown(name)} to adapt{nearest(name, short)} "
                f"Known: {', '.join(dict.fromkeys(short))}, {ALL}"
            )
    chosen = [place for place in known if any(ends(place.module, name) for name in names)]
    return tuple(module for place in chosen for module in place.ours)


def load_adapter(bundle: Bundle, directory: str | os.PathLike[str]) -> Bundle:
    """Lay a PEFT LoRA adapter over a bundle.

    Args:
        bundle: the base model; it stays as it is.
        directory: a folder with adapter_config.json and adapter_model.safetensors.

    Returns:
        A bundle with the adapter under `variables["lora"]`, its settings under `adapter` and the
        scale in the model.

    Raises:
        InputRefused: a config that dew does not follow, or no adapter there.
        WeightMismatch: tensors that do not fit the model, all in one message.
    """
    if _is_traced(bundle):
        from bridges.torch.lora_files import load_traced_adapter

        return load_traced_adapter(bundle, directory)
    folder = Path(os.fspath(directory))
    settings = read_adapter_config(folder, bundle.source)
    tensors = _open(folder)
    known = places(bundle)
    here = tuple(place for place in known if _has_tensors(place, tensors))
    leaves = _shapes(bundle, {place: settings.rank_of(place.module) for place in here})
    try:
        lora = into_tree(_rows(bundle, here), tensors, nested(leaves), np.float32)
    except WeightMismatch as error:
        raise WeightMismatch(f"{shown_path(folder / WEIGHTS)}: {error}") from None
    modules = tuple(place.module for place in here)
    refuse_targets(settings, modules, shown_path(folder / CONFIG))
    if not here:
        raise InputRefused(f"{shown_path(folder / WEIGHTS)}: holds no adapter for this model")
    scale = settings.scale_of(here[0].module)
    for place in here:
        _share(lora, place, settings.scale_of(place.module) / scale)
    rank = settings.rank_of(here[0].module)
    targets = tuple(module for place in here for module in place.ours)
    return bundle.replace(
        model=bundle.model.clone(adapter_scale=scale),
        variables={**_without_adapter(bundle), "lora": lora},
        adapter=LoRA(rank=rank, alpha=scale * rank, targets=targets),
    )


def export_adapter(bundle: Bundle, directory: str | os.PathLike[str]) -> None:
    """Write a bundle's adapter as PEFT reads it, the tokenizer beside it.

    Rank and alpha come from the bundle, nobody has to repeat them. Where the checkpoint fuses
    query, key and value, their adapters become one of the summed rank.

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
    if bundle.adapter is None or "lora" not in bundle.variables:
        raise InputRefused("the bundle has no adapter; bridges.export writes whole models")
    family, adapter = family_of(bundle.config), bundle.adapter
    known = places(bundle)
    here = tuple(place for place in known if set(place.ours) & set(adapter.targets))
    leaves: dict[str, np.ndarray] = {}
    ranks = {place.module: _fuse(bundle, place, leaves) for place in here}
    others = {m: r for m, r in ranks.items() if r != adapter.rank}
    settings = AdapterSettings(
        rank=adapter.rank,
        alpha=adapter.alpha,
        targets=_short_names(tuple(p.module for p in here), tuple(p.module for p in known)),
        ranks={_short(m): r for m, r in others.items()},
        alphas={_short(m): adapter.scale * r for m, r in others.items()},
    )
    tensors = list(out_of_tree(_rows(bundle, here), nested(leaves)))
    planned = [Planned(name, array.shape, array.dtype) for name, array in tensors]
    config = adapter_config(settings, source=bundle.source, conv1d=family.conv1d)
    processor: Any = bundle.processor
    files = dict(processor.files) if processor is not None else {}
    files[CONFIG] = json_bytes(config)
    with staged(Path(os.fspath(directory)), own={*files, WEIGHTS}.__contains__) as folder:
        write_safetensors(folder / WEIGHTS, planned, iter(tensors))
        for name, data in files.items():
            write_file(folder / name, data)


def merge(bundle: Bundle) -> Bundle:
    """Return a plain model whose kernels hold the adapter: W + scale * a b, summed in float32.

    Raises:
        InputRefused: a bundle without an adapter.
    """
    if bundle.adapter is None or "lora" not in bundle.variables:
        raise InputRefused("the bundle has no adapter to merge")
    if _is_traced(bundle):
        return bundle.merged
    params = merged(
        bundle.variables["params"], bundle.variables["lora"], bundle.model.adapter_scale
    )
    return bundle.replace(
        model=bundle.model.clone(adapter_scale=1.0),
        variables={**_without_adapter(bundle), "params": params},
        adapter=None,
    )


def _is_traced(bundle: Any) -> TypeGuard[Any]:
    from bridges.torch.checkpoint import TracedBundle

    return isinstance(bundle, TracedBundle)


def _without_adapter(bundle: Bundle) -> dict[str, Any]:
    return {name: value for name, value in bundle.variables.items() if name != "lora"}


def _open(folder: Path) -> Tensors:
    """Open the adapter's tensors."""
    if not os.path.lexists(folder / WEIGHTS) and os.path.lexists(folder / "adapter_model.bin"):
        return open_tensors(contained(folder, "adapter_model.bin"))
    return open_tensors(contained(folder, WEIGHTS))


def _has_tensors(place: Place, tensors: Tensors) -> bool:
    before, after = (re.escape(part) for part in f"{PREFIX}{place.module}.lora_".split(LAYER))
    pattern = re.compile(rf"{before}\d+{after}[AB]\.weight")
    return any(pattern.fullmatch(name) for name in tensors.names())


def _rows(bundle: Bundle, here: Sequence[Place]) -> tuple[Row, ...]:
    """Return PEFT's tensors and dew's leaves; a fused map has its one `a` at its first module."""
    model = bundle.model
    rows = []
    for place in here:
        name = f"{PREFIX}{place.module}"
        joins = merge_heads(model.num_heads) if ADAPTED[place.ours[0]] == 2 else TRANSPOSE
        rows.append(Row(f"{name}.lora_A.weight", f"layers/{place.ours[0]}/a", joins))
        outputs = tuple(f"layers/{module}/b" for module in place.ours)
        rows.append(Row(f"{name}.lora_B.weight", outputs, _output_move(model, place)))
    return tuple(rows)


def _output_move(model: Any, place: Place) -> Move:
    """Return how `lora_B` [outputs, R] becomes each module's `b`."""
    to_heads = place.ours[0] in ("attention/query", "attention/key", "attention/value")
    return in_turn(
        split_by(model.block_spec.head_features) if to_heads else TRANSPOSE, place.groups
    )


def _kernel(bundle: Bundle, module: str) -> Any:
    group, name = module.split("/")
    return bundle.variables["params"]["layers"][group][name]["kernel"]


def _shapes(bundle: Bundle, ranks: Mapping[Place, int]) -> dict[str, Any]:
    """Return the shapes of the leaves of `_rows`, by path."""
    shapes = {}
    for place, rank in ranks.items():
        for number, module in enumerate(place.ours):
            layers, *rest = _kernel(bundle, module).shape
            inputs, outputs = rest[: ADAPTED[module]], rest[ADAPTED[module] :]
            if number == 0:
                shapes[f"layers/{module}/a"] = (layers, *inputs, rank)
            shapes[f"layers/{module}/b"] = (layers, rank, *outputs)
    return {path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in shapes.items()}


def _share(lora: dict, place: Place, factor: float) -> None:
    """Give each module of a fused map the shared `a`, and fold a module's own scale into `b`."""
    leaves = [lora["layers"][m.split("/")[0]][m.split("/")[1]] for m in place.ours]
    for leaf in leaves:
        # A buffer of its own: a step may donate both.
        leaf["a"] = leaves[0]["a"] if leaf is leaves[0] else jnp.array(leaves[0]["a"])
        if factor != 1.0:
            leaf["b"] = leaf["b"] * np.float32(factor)


def _fuse(bundle: Bundle, place: Place, leaves: dict[str, np.ndarray]) -> int:
    """Add a place's leaves as `_rows` wants them and return their rank.

    Modules of a fused map that do not share one `a` are set side by side: the columns of `a`
    after one another, and each `b` in the rows that belong to its own columns.
    """
    layers = bundle.variables["lora"]["layers"]
    pairs = []
    for module in place.ours:
        group, name = module.split("/")
        leaf = layers.get(group, {}).get(name)
        pairs.append(leaf and (np.asarray(leaf["a"]), np.asarray(leaf["b"])))
    given = [pair for pair in pairs if pair is not None]
    shared = len(given) == len(pairs) and all(np.array_equal(p[0], given[0][0]) for p in given)
    if shared:
        leaves[f"layers/{place.ours[0]}/a"] = given[0][0]
        for module, (_, b) in zip(place.ours, given, strict=True):
            leaves[f"layers/{module}/b"] = b
        return given[0][0].shape[-1]
    leaves[f"layers/{place.ours[0]}/a"] = np.concatenate([a for a, _ in given], axis=-1)
    rank, start = sum(a.shape[-1] for a, _ in given), 0
    for module, pair in zip(place.ours, pairs, strict=True):
        depth, *rest = _kernel(bundle, module).shape
        b = np.zeros((depth, rank, *rest[ADAPTED[module] :]), np.float32)
        if pair is not None:
            stop = start + pair[0].shape[-1]
            b[:, start:stop] = pair[1]
            start = stop
        leaves[f"layers/{module}/b"] = b
    return rank


def _short(module: str) -> str:
    """Return a module's name within its layer, such as `self_attn.q_proj`."""
    return module.partition(f"{LAYER}.")[2]


def _short_names(here: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the shortest names that mean these modules and no others of the model."""
    names = []
    for module in here:
        last = module.rpartition(".")[2]
        alike = {other for other in known if ends(other, last)}
        names.append(last if alike <= set(here) else _short(module))
    return tuple(dict.fromkeys(names))
