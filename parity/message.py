"""Values that go from one process to another as files: JSON, and the bytes of the arrays in it.

Reading a message runs no code that the message names: it holds plain values, arrays, and the
fields of dataclasses that parity itself defines.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

TREE, ARRAYS = "tree.json", "arrays.bin"
ALIGNED = 64
PLAIN = (bool, int, float, str)


def write_message(folder: Path, value: Any) -> None:
    """Write a value into a folder, which is made.

    Args:
        folder: where.
        value: None, numbers, text, paths, bytes, arrays, lists, tuples, mappings and the frozen
            dataclasses of parity, inside each other as they like.

    Raises:
        TypeError: it holds something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ARRAYS).open("wb") as file:
        tree = _packed(value, file)
    (folder / TREE).write_text(json.dumps(tree), encoding="utf-8")


def read_message(folder: Path) -> Any:
    """Return the value of a folder; its arrays are mapped, and read as they are used."""
    tree = json.loads((folder / TREE).read_text(encoding="utf-8"))
    path = folder / ARRAYS
    # Mode "c" gives arrays that may be written to, and leaves the file as it is.
    held = np.memmap(path, np.uint8, "c") if path.stat().st_size else np.zeros(0, np.uint8)
    return _unpacked(tree, np.asarray(held))


def message_digest(folder: Path) -> str:
    """Return the hexadecimal sha256 of all that a message holds."""
    digest = hashlib.sha256()
    for name in (TREE, ARRAYS):
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def message_size(folder: Path) -> int:
    """Return how many bytes a message takes."""
    return sum((folder / name).stat().st_size for name in (TREE, ARRAYS))


def _packed(value: Any, file: BinaryIO) -> Any:
    if value is None or isinstance(value, PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return {"array": _stored(value, file)}
    if isinstance(value, np.generic):
        return {"scalar": _stored(np.asarray(value), file)}
    if isinstance(value, bytes):
        return {"bytes": _stored(np.frombuffer(value, np.uint8), file)}
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, list):
        return [_packed(part, file) for part in value]
    if isinstance(value, tuple):
        return {"tuple": [_packed(part, file) for part in value]}
    if isinstance(value, Mapping):
        pairs = [[_packed(k, file), _packed(v, file)] for k, v in value.items()]
        return {"mapping": pairs}
    kind = type(value)
    if dataclasses.is_dataclass(value) and _ours(kind.__module__):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        held = {name: _packed(part, file) for name, part in fields.items()}
        return {"dataclass": [kind.__module__, kind.__qualname__], "fields": held}
    raise TypeError(
        f"a {kind.__module__}.{kind.__qualname__} goes to no other process; use numbers, text, "
        "paths, arrays, lists, tuples, mappings and dataclasses of parity"
    )


def _stored(array: np.ndarray, file: BinaryIO) -> list[Any]:
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} goes to no other process; use numbers or text")
    start = -(-file.tell() // ALIGNED) * ALIGNED
    file.seek(start)
    # A view of bytes: a file takes no buffer of bfloat16.
    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    dtype = array.dtype.name if array.dtype.kind == "V" else array.dtype.str
    return [dtype, list(array.shape), start]


def _unpacked(tree: Any, held: np.ndarray) -> Any:
    if isinstance(tree, list):
        return [_unpacked(part, held) for part in tree]
    if not isinstance(tree, dict):
        return tree
    if "dataclass" in tree:
        fields = {name: _unpacked(part, held) for name, part in tree["fields"].items()}
        return _dataclass(*tree["dataclass"])(**fields)
    ((kind, value),) = tree.items()
    if kind == "array":
        return _array(value, held)
    if kind == "scalar":
        return _array(value, held)[()]
    if kind == "bytes":
        return _array(value, held).tobytes()
    if kind == "path":
        return Path(value)
    if kind == "tuple":
        return tuple(_unpacked(part, held) for part in value)
    return {_unpacked(name, held): _unpacked(part, held) for name, part in value}


def _array(stored: list[Any], held: np.ndarray) -> np.ndarray:
    name, shape, start = stored
    if name[0] not in "<>|=":
        import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by its name from here on)
    dtype = np.dtype(name)
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return held[start : start + size].view(dtype).reshape(shape)


def _dataclass(module: str, name: str) -> type:
    if not _ours(module):
        raise TypeError(f"{module}.{name} is no dataclass of parity")
    found = getattr(import_module(module), name, None)
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise TypeError(f"{module}.{name} is no dataclass of parity")
    return found


def _ours(module: str) -> bool:
    return module.split(".")[0] == "parity"
