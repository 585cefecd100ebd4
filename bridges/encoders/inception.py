"""The Inception network of FID, read from weights in pytorch-fid's layout."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.encoders.weights import fitted, read_weights
from bridges.files.regular_file import shown_path
from dew.nn.fid_sampling import SIDE
from dew.nn.inception import ENTRY, FIVES_AND_SIXES, SEVENS, InceptionEncoder, InceptionV3

EPSILON = 1e-3
NORM = ("weight", "bias", "running_mean", "running_var")
# The auxiliary head and the classes come after the features; the counts served training.
UNUSED = ("fc.", "AuxLogits.", "num_batches_tracked")
ENTRIES = {block.name: [c.name for c in block.entry] for block in (*FIVES_AND_SIXES, *SEVENS)}


def load_inception(
    path: str | os.PathLike[str], *, features: int = 2048, mode: str = "pytorch-fid"
) -> InceptionEncoder:
    """Return the encoder whose weights lie in a file.

    Args:
        path: a file in the layout of pytorch-fid's `pt_inception-2015-12-05-6726825d.pth`: that
            file itself (needs torch to be read), or the same as `.safetensors` or `.npz`.
        features: 2048, 1008, 768, 192 or 64; see `InceptionEncoder`.
        mode: whose number is wanted; see `InceptionEncoder`.

    Returns:
        The encoder. FID compares with published values only with those weights and 2048 features.

    Raises:
        InputRefused: the file cannot be read.
        WeightMismatch: its tensors are not the network's; all are listed.
    """
    return inception_of(read_weights(path), features=features, mode=mode, where=shown_path(path))


def inception_of(
    found: Mapping[str, np.ndarray], *, features: int, mode: str, where: str
) -> InceptionEncoder:
    """Return the encoder of arrays by the names that pytorch-fid gives them.

    Args:
        found: the arrays.
        features: see `load_inception`.
        mode: see `load_inception`.
        where: what messages call them.

    Raises:
        WeightMismatch: they are not the network's; all that do not fit are listed.
    """
    shapes = inception_shapes(1008 if features == 1008 else 2048)
    params = fitted(found, shapes, _build, ignored=UNUSED, where=where)
    return InceptionEncoder({"params": params}, features, mode)


def inception_shapes(features: int) -> dict[str, Any]:
    """Return the network's parameters as shapes, nested by unit."""
    images = jnp.zeros((1, SIDE, SIDE, 3), jnp.float32)
    return jax.eval_shape(InceptionV3(features).init, jax.random.key(0), images)["params"]


def _build(leaf: str) -> tuple[list[str], Callable[..., Any]]:
    """Return what a leaf is made of: convolutions, each with the batch norm that follows it."""
    unit, _, kind = leaf.rpartition("/")
    if unit == "fc":
        return ["fc.weight"], np.transpose
    block, _, last = unit.rpartition("/")
    units = ENTRIES[block] if last == ENTRY else [last]
    stems = [f"{block}.{name}" if block else name for name in units]
    names = [
        f"{stem}.{part}" for stem in stems for part in ("conv.weight", *(f"bn.{n}" for n in NORM))
    ]
    return names, _kernels if kind == "kernel" else _biases


def _kernels(*arrays: np.ndarray) -> np.ndarray:
    """Return the kernels [h, w, in, out] side by side."""
    folded = []
    for kernel, scale, _, _, variance in _units(arrays):
        gain = _gain(scale, variance)[:, None, None, None]
        folded.append((kernel * gain).transpose(2, 3, 1, 0))
    return np.concatenate(folded, -1)


def _biases(*arrays: np.ndarray) -> np.ndarray:
    folded = []
    for _, scale, bias, mean, variance in _units(arrays):
        shift = mean.astype(np.float64) * _gain(scale, variance)
        folded.append(bias.astype(np.float64) - shift)
    return np.concatenate(folded)


def _units(arrays: tuple[np.ndarray, ...]) -> list[tuple[np.ndarray, ...]]:
    size = 1 + len(NORM)
    return [arrays[start : start + size] for start in range(0, len(arrays), size)]


def _gain(scale: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + EPSILON)
