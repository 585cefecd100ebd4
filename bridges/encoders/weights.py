"""Named arrays from whatever file torch's users keep weights in; no pickle runs code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bridges.files.regular_file import open_regular, shown_path
from bridges.files.tensors import PICKLES, open_tensors
from bridges.table import flat, nested
from dew.errors import InputRefused, WeightMismatch, listed

TensorsByName = dict[str, np.ndarray]


def read_weights(path: str | os.PathLike[str]) -> TensorsByName:
    """Return the arrays of a file by their names.

    Args:
        path: `.safetensors` (or a folder with `model.safetensors`), `.npz`, or torch's own `.pth`,
            `.pt` or `.bin`, which is read by `torch.load(weights_only=True)` and needs torch.

    Raises:
        InputRefused: no such file, one that is not what its name says, or one that holds more than
            tensors.
    """
    path = Path(path)
    if path.suffix == ".npz":
        return _from_npz(path)
    if path.suffix in PICKLES:
        return _from_torch(path)
    tensors = open_tensors(path)
    return {name: tensors.read(name) for name in tensors.names()}


def fitted(
    found: Mapping[str, np.ndarray],
    shapes: Mapping[str, Any],
    build: Any,
    *,
    ignored: Iterable[str],
    where: str,
) -> dict[str, Any]:
    """Return the parameters of a model, each built from the arrays of a file.

    Args:
        found: the file's arrays by name.
        shapes: the model's parameters, a nested dict of anything with `shape`.
        build: a leaf's path to the names it is made of and the function of their arrays.
        ignored: names, or their beginnings or ends, that hold nothing the model needs.
        where: the file, for the message.

    Raises:
        WeightMismatch: missing, left-over and misshapen tensors, all in one message.
    """
    left = {name for name in found if not _is_ignored(name, tuple(ignored))}
    leaves, problems = {}, []
    for path, leaf in flat(shapes).items():
        names, make = build(path)
        left.difference_update(names)
        absent = [name for name in names if name not in found]
        problems += [f"missing     {name} (for {path} {tuple(leaf.shape)})" for name in absent]
        if absent:
            continue
        made = _made(make, [np.asarray(found[name]) for name in names])
        if made is None or made.shape != tuple(leaf.shape):
            shown = ", ".join(f"{name} {found[name].shape}" for name in names)
            problems.append(f"misshapen   {shown} for {path} {tuple(leaf.shape)}")
        else:
            leaves[path] = np.ascontiguousarray(made, np.float32)
    problems += [f"left over   {name} {found[name].shape}" for name in sorted(left)]
    if problems:
        heading = f"{where}: {len(problems)} tensors do not fit the network:"
        raise WeightMismatch(listed(heading, problems))
    return nested(leaves)


def _made(make: Any, arrays: list[np.ndarray]) -> np.ndarray | None:
    try:
        return make(*arrays)
    except ValueError:  # numpy's, where the shapes do not go together
        return None


def _is_ignored(name: str, ignored: tuple[str, ...]) -> bool:
    return name.startswith(ignored) or name.endswith(ignored)


def _from_npz(path: Path) -> TensorsByName:
    with open_regular(path) as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except (ValueError, OSError, AttributeError, TypeError) as error:
            raise InputRefused(
                f"{shown_path(path)}: not an .npz archive of plain arrays ({error}). Expected what "
                "numpy.savez writes; save it again."
            ) from None


def _from_torch(path: Path) -> TensorsByName:
    try:
        import torch
    except ImportError:
        raise InputRefused(
            f"{shown_path(path)}: torch's own format needs torch to be read. Install it (pip "
            'install "dew[torch]"), or save the weights as .safetensors once, where torch is.'
        ) from None
    with open_regular(path) as file:
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds for a file it will not read
            raise InputRefused(
                f"{shown_path(path)}: torch will not read it as plain weights "
                f"({type(error).__name__}). Expected a state dict; save one with torch.save("
                "model.state_dict(), path)."
            ) from None
    if not isinstance(found, Mapping) or not all(
        isinstance(value, torch.Tensor) for value in found.values()
    ):
        raise InputRefused(
            f"{shown_path(path)}: holds more than tensors by name. Expected a state dict."
        )
    return {name: value.float().numpy() for name, value in found.items()}
