"""What the files of two checkpoints hold, and how they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

SHOWN = 4
COUNTER = "num_batches_tracked"
"""How many batches a norm has seen. No output depends on it, and an export leaves it out."""


def stored_tensors(source: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a folder's safetensors files, as they lie there; none for GGUF."""
    from safetensors.numpy import load_file

    if source.is_file():
        return {}
    found: dict[str, np.ndarray] = {}
    for path in sorted(source.glob("*.safetensors")):
        found.update(load_file(path))
    return {name: value for name, value in found.items() if not name.endswith(COUNTER)}


def tensor_problems(
    exported: Mapping[str, np.ndarray], source: Mapping[str, np.ndarray]
) -> list[str]:
    """Return what differs between the tensors of an export and those of its source."""
    absent = [f"{name} is not in the export" for name in source if name not in exported]
    new = [f"{name} is only in the export" for name in exported if name not in source]
    unlike = [
        f"{name}: exported {exported[name].dtype} {exported[name].shape} has other bytes"
        for name in source
        if name in exported and not _same_bytes(exported[name], source[name])
    ]
    return [*absent, *new, *unlike]


def file_problems(first: Path, second: Path) -> list[str]:
    """Return what differs between the files of two folders."""
    names = [{path.name for path in folder.iterdir()} for folder in (first, second)]
    lonely = [f"{name} is in one export only" for name in sorted(names[0] ^ names[1])]
    unlike = [
        f"{name} has other bytes in the export of the export"
        for name in sorted(names[0] & names[1])
        if (first / name).read_bytes() != (second / name).read_bytes()
    ]
    return [*lonely, *unlike]


def complaints(info: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what a reader said of an export: keys missing, unexpected or misshapen."""
    named = {
        kind: [key for key in keys if not key.endswith(COUNTER)] for kind, keys in info.items()
    }
    return [
        f"transformers reports {kind} {', '.join(keys[:SHOWN])}"
        for kind, keys in named.items()
        if keys
    ]


def told(problems: Sequence[str]) -> str:
    """Return the first problems in one line, and how many more there are."""
    more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return "; ".join(problems[:SHOWN]) + more


def _same_bytes(one: np.ndarray, other: np.ndarray) -> bool:
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and one.tobytes() == other.tobytes()
