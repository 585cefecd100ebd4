"""The weights of a checkpoint, wherever they lie: one file, shards with an index, .bin or GGUF."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bridges.files.bin_file import BinFile, open_bin
from bridges.files.json_file import read_json
from bridges.files.regular_file import contained, shown_path
from bridges.files.safetensors_file import SafetensorsFile, TensorInfo, open_safetensors
from dew.errors import InputRefused, UnknownName, listed, nearest, shown

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"
INDEX_LIMIT = 256 << 20
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
WRAPPERS = ("_orig_mod.", "module.")


class Tensors(Protocol):
    """Named tensors on disk. Everything but `read` works from headers alone."""

    def names(self) -> list[str]:
        """Return the names of the tensors."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Return shape, dtype and file of a tensor, without reading it."""
        ...

    def read(self, name: str) -> np.ndarray:
        """Return a tensor, C-contiguous and read-only, in the dtype that `info` gives."""
        ...

    def release(self, name: str) -> None:
        """Give the memory behind a tensor that has been copied back to the system."""
        ...


def open_tensors(path: str | os.PathLike[str]) -> Tensors:
    """Open the weights of a checkpoint and check every header; no tensor is read.

    Args:
        path: a `.safetensors`, `.gguf` or torch file (`.bin`, `.pt`, `.pth`, `.ckpt`), an index
            file, or a folder. In a folder an index decides alone which files are read; without
            one it is `model.safetensors`, then the same of `pytorch_model.bin`, and without
            that the only `.gguf` file.

    Returns:
        The tensors under their Hugging Face names. Wrapper prefixes (`_orig_mod.`, `module.`)
        that every name bears are dropped.

    Raises:
        InputRefused: no weights, a pickle that asks for more than tensors, or headers, shards and
            index that do not fit; all shards at fault and all absent tensors in one message.
    """
    path = Path(path)
    if os.path.isdir(path):
        return _unwrapped(_open_folder(path))
    if path.suffix == ".gguf":
        return _open_gguf(path)
    if path.name.endswith(".index.json"):
        return _unwrapped(_open_sharded(path.parent, path.name))
    if path.suffix in PICKLES:
        return _unwrapped(open_bin(path))
    return _unwrapped(open_safetensors(path))


_Shard = SafetensorsFile | BinFile


@dataclass(frozen=True)
class _Sharded:
    """Tensors spread over several files."""

    source: Path
    homes: dict[str, _Shard]

    def names(self) -> list[str]:
        """Return the names, in the order of the index."""
        return list(self.homes)

    def info(self, name: str) -> TensorInfo:
        """Return what the shard's header says."""
        return self._home(name).info(name)

    def read(self, name: str) -> np.ndarray:
        """Return the view that the shard gives."""
        return self._home(name).read(name)

    def release(self, name: str) -> None:
        """Release the tensor's pages in its shard."""
        self._home(name).release(name)

    def _home(self, name: str) -> _Shard:
        """Return the shard of `name`, or refuse an unknown one."""
        if name not in self.homes:
            raise UnknownName(
                f"{shown_path(self.source)}: no tensor {shown(name)} among its "
                f"{len(self.homes)}{nearest(name, self.homes)}"
            )
        return self.homes[name]


@dataclass(frozen=True)
class _Unwrapped:
    """Tensors whose names all bear a wrapper's prefix, shown without it."""

    inner: Tensors
    prefix: str

    def names(self) -> list[str]:
        """Return the names without the prefix."""
        return [name.removeprefix(self.prefix) for name in self.inner.names()]

    def info(self, name: str) -> TensorInfo:
        """Return what the file's header says."""
        return self.inner.info(self.prefix + name)

    def read(self, name: str) -> np.ndarray:
        """Return the tensor."""
        return self.inner.read(self.prefix + name)

    def release(self, name: str) -> None:
        """Release the tensor's pages."""
        self.inner.release(self.prefix + name)


def _unwrapped(tensors: Tensors) -> Tensors:
    """Drop the prefixes of torch's compile and data-parallel wrappers, if every name has them."""
    names = tensors.names()
    for prefix in WRAPPERS:
        if names and all(name.startswith(prefix) and name != prefix for name in names):
            return _unwrapped(_Unwrapped(tensors, prefix))
    return tensors


def _open_folder(folder: Path) -> Tensors:
    """Open what a folder's weights are, in the order that `open_tensors` gives."""
    if os.path.lexists(folder / INDEX):
        return _open_sharded(folder, INDEX)
    if os.path.lexists(folder / SINGLE):
        return open_safetensors(contained(folder, SINGLE))
    if os.path.lexists(folder / PICKLED_INDEX):
        return _open_sharded(folder, PICKLED_INDEX)
    if os.path.lexists(folder / PICKLED):
        return open_bin(contained(folder, PICKLED))
    names = sorted(entry.name for entry in folder.iterdir())
    ggufs = [name for name in names if name.endswith(".gguf")]
    if len(ggufs) == 1:
        return _open_gguf(contained(folder, ggufs[0]))
    if ggufs:
        raise InputRefused(
            listed(
                f"{shown_path(folder)}: found {len(ggufs)} GGUF files, expected one. "
                "Give the path of the file to load:",
                [shown(name) for name in ggufs],
            )
        )
    others = [shown(name) for name in names if name.endswith((".safetensors", *PICKLES))]
    raise InputRefused(
        f"{shown_path(folder)}: no weights. Expected {SINGLE}, {PICKLED}, an index of one of them "
        f"or one .gguf file; files of other names: {', '.join(others[:20]) or 'none'}."
    )


def _open_gguf(path: Path) -> Tensors:
    """Open a GGUF file; its reader is only loaded when there is one to read."""
    from bridges.files.gguf_file import open_gguf

    return open_gguf(path)


def _open_sharded(folder: Path, index: str) -> Tensors:
    """Open exactly the shards that the index names, and check that they hold what it promises."""
    ending = ".bin" if index.endswith(".bin.index.json") else ".safetensors"
    promised = _weight_map(contained(folder, index), ending)
    shards: dict[str, _Shard] = {}
    problems: list[str] = []
    for name in sorted(set(promised.values())):
        try:
            opened = open_bin if ending == ".bin" else open_safetensors
            shards[name] = opened(contained(folder, name))
        except InputRefused as error:
            problems.append("; ".join(line.strip() for line in str(error).splitlines()))
    homes = {}
    for tensor, name in promised.items():
        if name in shards and tensor not in shards[name].entries:
            problems.append(f"tensor {shown(tensor)} is not in {name}, where the index puts it")
        elif name in shards:
            homes[tensor] = shards[name]
    for name, shard in shards.items():
        for tensor in shard.entries:
            home = homes.setdefault(tensor, shard)
            if home is not shard:
                problems.append(f"tensor {shown(tensor)} is in both {home.path.name} and {name}")
    if problems:
        heading = (
            f"{shown_path(folder / index)}: the shards do not fit the index. Expected every shard "
            "whole and every tensor where the index puts it; download the folder again:"
        )
        raise InputRefused(listed(heading, problems))
    return _Sharded(folder / index, homes)


def _weight_map(path: Path, ending: str) -> dict[str, str]:
    """Read an index: tensor name to the plain name of a file beside it, of the right ending."""
    index: dict[str, Any] = read_json(path, size_limit=INDEX_LIMIT)
    promised = index.get("weight_map")
    if not isinstance(promised, dict) or not promised:
        raise InputRefused(
            f"{shown_path(path)}: weight_map is {shown(promised)}. Expected an object of tensor "
            "name to shard file; download the index again."
        )
    problems = []
    for name in dict.fromkeys(v if isinstance(v, str) else repr(v) for v in promised.values()):
        try:
            contained(path.parent, name)
        except InputRefused as error:
            problems.append(str(error))
            continue
        if not name.endswith(ending):
            problems.append(f"{shown(name)} is no {ending} file")
    if problems:
        raise InputRefused(
            listed(
                f"{shown_path(path)}: weight_map names files that are not read. Expected "
                f"the names of {ending} files beside the index; correct or download it again:",
                problems,
            )
        )
    return promised
