"""Inception with seeded weights, by the names of pytorch-fid's file: both sides draw the same."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = 1008


Shapes = dict[str, tuple[int, ...]]
"""The tensors of pytorch-fid's file, by name."""


def weight_shapes() -> Shapes:
    """Return the shapes of what the network is read from; only dew's side is asked for them."""
    from bridges.encoders.inception import ENTRIES, NORM, inception_shapes
    from bridges.table import flat
    from dew.nn.inception import ENTRY, FIVES_AND_SIXES, SEVENS

    widths = {
        block.name: [conv.features for conv in block.entry] for block in (*FIVES_AND_SIXES, *SEVENS)
    }
    shapes: Shapes = {"fc.weight": (CLASSES, 2048), "fc.bias": (CLASSES,)}
    for leaf, shape in flat(inception_shapes(2048)).items():
        unit, _, kind = leaf.rpartition("/")
        if kind != "kernel":
            continue
        block, _, last = unit.rpartition("/")
        rows, columns, channels, features = shape.shape
        names = ENTRIES[block] if last == ENTRY else [last]
        for name, width in zip(names, widths[block] if last == ENTRY else [features], strict=True):
            stem = f"{block}.{name}" if block else name
            shapes[f"{stem}.conv.weight"] = (width, channels, rows, columns)
            shapes |= {f"{stem}.bn.{part}": (width,) for part in NORM}
    return shapes


def seeded_weights(seed: int, shapes: Shapes) -> dict[str, np.ndarray]:
    """Return float32 arrays by name, drawn so that signals neither die nor grow.

    Args:
        seed: equal seeds give equal arrays.
        shapes: of `weight_shapes`.
    """
    draw = np.random.default_rng(seed)
    drawn = {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            spread = np.float32(np.sqrt(2 / np.prod(shape[1:])))
            drawn[name] = draw.standard_normal(shape, np.float32) * spread
        else:
            gains = name.endswith((".bn.weight", ".running_var"))
            low, high = (0.5, 1.5) if gains else (-0.2, 0.2)
            drawn[name] = draw.uniform(low, high, shape).astype(np.float32)
    return drawn


@lru_cache(maxsize=2)
def seeded_encoder(seed: int, *, features: int, mode: str) -> Any:
    """Return dew's encoder with the seeded weights; the arguments are those of its class."""
    from bridges.encoders.inception import inception_of

    found = seeded_weights(seed, weight_shapes())
    return inception_of(found, features=features, mode=mode, where="seeded weights")


def torch_weights(seed: int, shapes: Shapes) -> dict[str, Any]:
    """Return the same weights as a state dict of torch."""
    import torch

    found = seeded_weights(seed, {name: tuple(shape) for name, shape in shapes.items()})
    return {name: torch.from_numpy(value) for name, value in found.items()}


@contextmanager
def weights_file(state: dict[str, Any]) -> Iterator[Path]:
    """Yield torch's own file of a state dict, for tools that take a path."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inception.pth"
        torch.save(state, path)
        yield path


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Put something in the place of a module's attribute while the block runs."""
    kept = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, kept)


@contextmanager
def fidelity_options(state: dict[str, Any], batch: int) -> Iterator[dict[str, Any]]:
    """Yield what makes torch-fidelity read the given weights, stay on the CPU and keep nothing."""
    import torch_fidelity.utils as theirs

    def loader(*args: Any, **options: Any) -> Any:
        # Its worker processes take longer to start than these few pictures to be read.
        return plain(*args, **{**options, "num_workers": 0})

    plain = theirs.DataLoader
    with weights_file(state) as file, replaced(theirs, "DataLoader", loader):
        yield {
            "feature_extractor_weights_path": str(file),
            "batch_size": batch,
            "cuda": False,
            "cache": False,
            "verbose": False,
        }


def fidelity_metrics(state: dict[str, Any], batch: int, **asked: Any) -> dict[str, float]:
    """Return torch-fidelity's metrics, with the given weights.

    Args:
        state: of its network.
        batch: pictures at once.
        asked: the arguments of `calculate_metrics`.
    """
    import torch_fidelity

    with fidelity_options(state, batch) as options:
        return torch_fidelity.calculate_metrics(**options, **asked)
