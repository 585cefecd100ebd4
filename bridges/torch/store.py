"""Traces on disk: JSON and safetensors, named by what they hold, so that a start needs no torch."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bridges.files.safetensors_file import open_safetensors
from bridges.files.writer import Planned, write_file, write_safetensors
from bridges.torch.graph import from_json, to_json
from bridges.torch.run import Program

KINDS = {False: "evaluation", True: "training"}


def keep_program(folder: Path, training: bool, program: Program) -> None:
    """Write a program beside those that are there.

    The constants come first and the graph last, each by a rename, and the graph's name is the
    digest of both: a write that was cut short is never read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    constants = folder / f"{uuid.uuid4().hex}.tmp"
    write_arrays(constants, program.constants)
    text = to_json(program.graph)
    name = f"{KINDS[training]}-{_digest(text, constants)}"
    os.replace(constants, folder / f"{name}.safetensors")
    aside = folder / f"{uuid.uuid4().hex}.tmp"
    write_file(aside, text.encode())
    os.replace(aside, folder / f"{name}.json")


def kept_programs(folder: Path) -> dict[bool, list[Program]]:
    """Read the programs of a folder; a damaged one is left out, and a warning names it."""
    found: dict[bool, list[Program]] = {False: [], True: []}
    for training, kind in KINDS.items():
        for path in sorted(folder.glob(f"{kind}-*.json")):
            constants = path.with_suffix(".safetensors")
            try:
                text = path.read_text(encoding="utf-8")
                if path.stem != f"{kind}-{_digest(text, constants)}":
                    raise ValueError("its bytes are not those that were written")
                found[training].append(Program(from_json(text), read_arrays(constants)))
            except (OSError, ValueError, KeyError, TypeError) as error:
                warnings.warn(f"{path}: {error}; the module is traced anew", stacklevel=2)
    return found


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name as one safetensors file."""
    plain = {name: np.asarray(array) for name, array in arrays.items()}
    planned = [Planned(name, array.shape, array.dtype) for name, array in plain.items()]
    write_safetensors(path, planned, iter(plain.items()))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read what `write_arrays` wrote."""
    file = open_safetensors(path)
    return {name: np.array(file.read(name)) for name in file.names()}


def fingerprint(*parts: Any) -> str:
    """Return a name for whatever JSON carries, equal for equal parts."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _digest(text: str, constants: Path) -> str:
    digest = hashlib.sha256(text.encode())
    digest.update(constants.read_bytes())
    return digest.hexdigest()[:32]
