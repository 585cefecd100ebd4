"""The Inception network of FID, read from weights in pytorch-fid's layout."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.encoders.weights import fitted, read_weights
from bridges.files.regular_file import shown_path
from dew.nn.inception import SIDE, InceptionEncoder, InceptionV3

EPSILON = 1e-3
# The classifier and the auxiliary head come after the features; the counts served training.
UNUSED = ("fc.", "AuxLogits.", "num_batches_tracked")


def load_inception(path: str | os.PathLike[str], *, features: int = 2048) -> InceptionEncoder:
    """Return the encoder whose weights lie in a file.

    Args:
        path: a file in the layout of pytorch-fid's `pt_inception-2015-12-05-6726825d.pth`: that
            file itself (needs torch to be read), or the same as `.safetensors` or `.npz`.
        features: 2048, 768, 192 or 64; see `InceptionEncoder`.

    Returns:
        The encoder. FID compares with published values only with those weights and 2048 features.

    Raises:
        InputRefused: the file cannot be read.
        WeightMismatch: its tensors are not the network's; all are listed.
    """
    shapes = jax.eval_shape(
        InceptionV3().init, jax.random.key(0), jnp.zeros((1, SIDE, SIDE, 3), jnp.float32)
    )
    params = fitted(
        read_weights(path), shapes["params"], _build, ignored=UNUSED, where=shown_path(path)
    )
    return InceptionEncoder({"params": params}, features)


def _build(leaf: str) -> tuple[list[str], Callable[..., Any]]:
    """Return what a leaf is made of: a convolution and the batch norm that follows it."""
    unit, _, kind = leaf.rpartition("/")
    unit = unit.replace("/", ".")
    norm = [f"{unit}.bn.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
    names = [f"{unit}.conv.weight", *norm]
    return names, _kernel if kind == "kernel" else _bias


def _kernel(kernel: np.ndarray, scale: Any, bias: Any, mean: Any, variance: Any) -> np.ndarray:
    return (kernel * _gain(scale, variance)[:, None, None, None]).transpose(2, 3, 1, 0)


def _bias(kernel: np.ndarray, scale: Any, bias: Any, mean: Any, variance: Any) -> np.ndarray:
    return bias.astype(np.float64) - mean.astype(np.float64) * _gain(scale, variance)


def _gain(scale: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + EPSILON)
