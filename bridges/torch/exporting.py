"""Writing a traced bundle back as the checkpoint that it came from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name bfloat16)
import numpy as np

from bridges.files.swap import staged
from bridges.files.tensors import open_tensors
from bridges.files.writer import Planned, json_bytes, write_file, write_weights
from bridges.torch.checkpoint import TracedBundle
from dew.errors import InputRefused, listed


def export_traced(
    bundle: TracedBundle, directory: str | os.PathLike[str], *, shard_bytes: int, verify: bool
) -> None:
    """Write a traced bundle as a Hugging Face folder, under its source's tensor names and dtypes.

    Args:
        bundle: what `bridges.load` returned, perhaps with other parameters.
        directory: the folder.
        shard_bytes: the most bytes of tensors in one file.
        verify: read what was written and compare every tensor, before it replaces anything.

    Raises:
        InputRefused: the source's tensors are not this module's one by one (transformers joins
            or splits them as it loads), so that no table leads back.
        ExportDiffers: the comparison found a difference; `directory` is as it was.
        OSError: the disk is full or fails; `directory` is as it was.
    """
    if bundle.adapter is not None:
        raise InputRefused(
            "the bundle holds an adapter beside its weights; write it with bridges.export_adapter, "
            "or merge it into the weights first with bridges.adapters.merge"
        )
    tensors = dict(_tensors(bundle))
    planned = [Planned(name, array.shape, array.dtype) for name, array in tensors.items()]
    with staged(Path(os.fspath(directory))) as folder:
        write_weights(folder, planned, iter(tensors.items()), shard_bytes=shard_bytes)
        for name, data in _files(bundle, planned).items():
            write_file(folder / name, data)
        if verify:
            _verify(folder, tensors)


def _tensors(bundle: TracedBundle) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the source's tensors with the bundle's values, in its dtypes where they hold them."""
    record: Mapping[str, Any] = bundle.stored
    if not record["direct"]:
        raise InputRefused(
            f"{bundle.family}: transformers joins or splits this source's tensors as it loads "
            "them, and dew has no way back yet. Expected one tensor for each parameter."
        )
    leaves = {**bundle.variables["buffers"], **bundle.variables["params"]}
    ours = {
        theirs: (np.asarray(leaves[record["canonical"].get(name, name)]), np.dtype(dtype))
        for name, (theirs, dtype) in record["stored"].items()
    }
    from bridges.exporting import fits

    exact = all(fits(array, dtype) for array, dtype in ours.values())
    for name, (array, dtype) in ours.items():
        yield name, array.astype(dtype) if exact else array


def _files(bundle: TracedBundle, planned: list[Planned]) -> dict[str, bytes]:
    processor: Any = bundle.processor
    files = dict(processor.files) if processor is not None else {}
    sizes: Counter[str] = Counter()
    for tensor in planned:
        sizes[tensor.dtype.name] += tensor.size
    kept = sizes.most_common(1)[0][0]
    dtypes = {"dtype": kept, "torch_dtype": kept}
    files["config.json"] = json_bytes({**bundle.config, **_rope_for_four(bundle.config), **dtypes})
    if bundle.generation_config:
        files["generation_config.json"] = json_bytes(bundle.generation_config)
    return files


def _rope_for_four(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base of the rotary angles where transformers 4 looks for it, unless it is there.

    transformers 5 writes it under `rope_parameters`, once or for each type of layer; 4 would take
    its default instead.
    """
    rope = config.get("rope_parameters")
    if not isinstance(rope, Mapping) or "rope_theta" in config:
        return {}
    kinds = [rope, *(part for part in rope.values() if isinstance(part, Mapping))]
    bases = {kind["rope_theta"] for kind in kinds if "rope_theta" in kind}
    return {"rope_theta": bases.pop()} if len(bases) == 1 else {}


def _verify(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    from bridges.exporting import ExportDiffers

    again = open_tensors(folder)
    problems = [
        f"{name}: other values"
        for name, array in tensors.items()
        if np.ascontiguousarray(again.read(name)).tobytes() != array.tobytes()
    ]
    if problems:
        raise ExportDiffers(
            listed("what was written does not read back equal; nothing was replaced:", problems)
        )
