"""A GGUF file as the Hugging Face checkpoint it was made from: names, layout, config."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bridges.files import gguf_llama
from bridges.files.gguf_header import GGUFHeader, GGUFTensor, block_sizes, read_header
from bridges.files.mapped_file import MappedFile
from bridges.files.regular_file import LFS_POINTER, open_regular, shown_path
from bridges.files.safetensors_file import TensorInfo
from dew.errors import InputRefused, UnknownName, listed, nearest, shown

ARCHITECTURES = ("llama",)
CHUNK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class GGUFFile:
    """The tensors of one GGUF file under their Hugging Face names.

    Attributes:
        path: the file.
        metadata: its fields, the tokenizer's among them.
    """

    path: Path
    metadata: dict[str, Any]
    _header: GGUFHeader = field(repr=False)
    _stored: dict[str, str] = field(repr=False)
    _config: dict[str, Any] = field(repr=False)
    _mapped: MappedFile = field(repr=False)

    def names(self) -> list[str]:
        """Return the Hugging Face names; a tensor without one keeps its own."""
        return list(self._stored)

    def info(self, name: str) -> TensorInfo:
        """Return the shape of a tensor; its dtype is float32, as `read` gives it."""
        return TensorInfo(self._entry(name).dimensions[::-1], np.dtype(np.float32), self.path)

    def read(self, name: str) -> np.ndarray:
        """Return a tensor dequantised to float32, [outputs, inputs], rows in Hugging Face's order.

        Args:
            name: one of `names()`.

        Returns:
            A C-contiguous array: a new one, or for float32 a read-only view of the file.

        Raises:
            UnknownName: the file has no such tensor.
            InputRefused: rows that the heads of the config do not divide.
        """
        weight = _dequantised(self._mapped, self._header.data_offset, self._entry(name))
        heads = gguf_llama.heads_of(name, self._config)
        if heads is None:
            return weight
        if weight.ndim == 0 or weight.shape[0] % (2 * heads):
            raise InputRefused(
                f"{shown_path(self.path)}: tensor {shown(name)} is {weight.shape}. Expected rows "
                f"for {heads} heads of an even size; convert the model again."
            )
        return gguf_llama.unpermuted(weight, heads)

    def release(self, name: str) -> None:
        """Let the system take back the memory pages of a tensor that has been read."""
        entry = self._entry(name)
        self._mapped.release(self._header.data_offset + entry.offset, entry.size)

    def config(self) -> dict[str, Any]:
        """Return the config.json that the checkpoint would have; see `gguf_llama.hf_config`."""
        return dict(self._config)

    def _entry(self, name: str) -> GGUFTensor:
        """Return the list entry of a tensor, or refuse an unknown name."""
        if name not in self._stored:
            raise UnknownName(
                f"{shown_path(self.path)}: no tensor {shown(name)} among its "
                f"{len(self._stored)}{nearest(name, self._stored)}"
            )
        return self._header.tensors[self._stored[name]]


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file and check its whole header; no weight is read.

    Args:
        path: a regular file.

    Returns:
        The file.

    Raises:
        InputRefused: not a GGUF file, one that does not fit its own header, an architecture other
            than those known, or a field that asks for what is not computed.
    """
    where = shown_path(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise InputRefused(
                f"{where}: an empty file (0 bytes). Expected GGUF; download it again."
            )
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise InputRefused(
                f"{where}: expected a GGUF file, found a Git LFS pointer. "
                "Run `git lfs pull` in its folder."
            )
        mapped = MappedFile(file, size)
    header = read_header(mapped.buffer(), where)
    _check_architecture(header.metadata, where)
    stored = _hf_names(header, where)
    shapes = {name: header.tensors[own].dimensions[::-1] for name, own in stored.items()}
    factors = header.tensors.get(gguf_llama.ROPE_FACTORS)
    if factors is not None:
        factors = _dequantised(mapped, header.data_offset, factors)
    config = gguf_llama.hf_config(header.metadata, shapes, factors, where)
    return GGUFFile(Path(path), header.metadata, header, stored, config, mapped)


def _check_architecture(metadata: dict[str, Any], where: str) -> None:
    """Refuse other architectures, and files that are one part of several."""
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        hint = nearest(architecture, ARCHITECTURES) if isinstance(architecture, str) else ""
        raise InputRefused(
            f"{where}: general.architecture is {shown(architecture)}. Expected one of "
            f"{', '.join(ARCHITECTURES)}{hint}; load the model's safetensors."
        )
    parts = metadata.get("split.count", 1)
    if parts not in (0, 1):
        raise InputRefused(
            f"{where}: one of {shown(parts)} parts of a split model. Expected one whole file; "
            "merge the parts with llama.cpp's llama-gguf-split --merge."
        )


def _hf_names(header: GGUFHeader, where: str) -> dict[str, str]:
    """Return Hugging Face name to the file's own name; two may not become one."""
    stored: dict[str, str] = {}
    problems = []
    for own in header.tensors:
        if own == gguf_llama.ROPE_FACTORS:
            continue
        name = gguf_llama.hf_name(own)
        if name in stored:
            problems.append(f"{shown(own)} and {shown(stored[name])} are both {shown(name)}")
        stored[name] = own
    if problems:
        raise InputRefused(
            listed(f"{where}: tensors of one meaning. Expected one of each:", problems)
        )
    return stored


def _dequantised(mapped: MappedFile, data_offset: int, entry: GGUFTensor) -> np.ndarray:
    """Return a tensor's numbers as float32 in C order, converted some rows at a time."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(entry.kind)
    raw = mapped.view(data_offset + entry.offset, entry.size)
    shape = entry.dimensions[::-1]
    if kind is GGMLQuantizationType.F32:
        return raw.view(np.float32).reshape(shape)
    _, block, block_bytes = block_sizes()[entry.kind]
    row = max(shape[-1] if shape else 1, 1)
    rows = raw.reshape(-1, row // block * block_bytes)
    weight = np.empty((rows.shape[0], row), np.float32)
    step = max(1, CHUNK_ELEMENTS // row)
    # A broken scale gives infinities; whoever reads the weights counts and names them.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, rows.shape[0], step):
            weight[start : start + step] = dequantize(rows[start : start + step], kind)
    return weight.reshape(shape)
