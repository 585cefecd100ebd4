"""The networks of LPIPS, read from torchvision's trunks and the published heads."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.encoders.weights import fitted, read_weights
from bridges.files.regular_file import shown_path
from dew.errors import InputRefused
from dew.nn.perceptual_trunks import STAGES, PerceptualDistanceNet, PerceptualNetwork

SIDE = 64
UNUSED = ("classifier.",)


def load_perceptual(
    net: str,
    trunk: str | os.PathLike[str],
    heads: str | os.PathLike[str] | None = None,
) -> PerceptualNetwork:
    """Return the network of LPIPS whose weights lie in two files.

    Args:
        net: `alex`, `vgg` or `squeeze`.
        trunk: torchvision's alexnet, vgg16 or squeezenet1_1: `.safetensors`, `.npz`, or its own
            `.pth` (needs torch to be read).
        heads: the trained weights of the stages, `lin0.model.1.weight` and so on; None takes
            those that come with an installed torchmetrics.

    Raises:
        InputRefused: another net, a file that cannot be read, or no heads.
        WeightMismatch: tensors that are not the network's; all are listed.
    """
    if net not in STAGES:
        raise InputRefused(f"net is {net!a:.200}; expected one of {', '.join(STAGES)}")
    heads = _shipped(net) if heads is None else Path(heads)
    found = {**read_weights(trunk), **read_weights(heads)}
    shapes = jax.eval_shape(
        PerceptualDistanceNet(net).init, jax.random.key(0), jnp.zeros((1, 2, SIDE, SIDE, 3))
    )
    where = f"{shown_path(trunk)} and {shown_path(heads)}"
    params = fitted(found, shapes["params"], partial(_build, found), ignored=UNUSED, where=where)
    return PerceptualNetwork(net, {"params": params})


def _build(found: Any, leaf: str) -> tuple[list[str], Callable[..., Any]]:
    if leaf.startswith("head"):
        number = leaf.removeprefix("head")
        # With and without the dropout that stood before the weights when they were trained.
        names = [f"lin{number}.model.1.weight", f"lin{number}.model.0.weight"]
        return [next((name for name in names if name in found), names[0])], _head
    unit, _, kind = leaf.rpartition("/")
    stem = unit.removeprefix("features").replace("_", ".")
    if kind == "kernel":
        return [f"features.{stem}.weight"], lambda weight: weight.transpose(2, 3, 1, 0)
    return [f"features.{stem}.bias"], lambda bias: bias


def _head(weight: np.ndarray) -> np.ndarray:
    return weight.reshape(weight.shape[1])


def _shipped(net: str) -> Path:
    spec = importlib.util.find_spec("torchmetrics")
    if spec is None or spec.origin is None:
        raise InputRefused(
            "lpips: no heads. Give the file that holds them (heads=...), or install torchmetrics, "
            'whose package brings them: pip install "dew[parity]".'
        )
    return Path(spec.origin).parent / "functional" / "image" / "lpips_models" / f"{net}.pth"
