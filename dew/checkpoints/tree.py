"""The orbax tree inside a checkpoint: written from host arrays, read into a template's places."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dew.checkpoints.leaves import Path as LeafPath
from dew.checkpoints.leaves import leaves_of, nested

FOLDER = "dew/tree"


def write_tree(folder: Path, leaves: Mapping[LeafPath, np.ndarray], data: Mapping[str, np.ndarray]):
    """Write state leaves and data rows into `folder`/dew/tree and wait until they are there."""
    from orbax.checkpoint import v1 as ocp

    (folder / FOLDER).parent.mkdir(exist_ok=True)
    checkpointables = {"state": nested(leaves), "data": dict(data)}
    # Folders made in the background would keep the process waiting where one cannot be made.
    context = ocp.Context()
    context.async_options.create_directories_asynchronously = False
    with context:
        ocp.save_checkpointables_async(str(folder / FOLDER), checkpointables).result()


def read_tree(
    folder: Path, stored: Mapping[LeafPath, Any], wanted: Mapping[LeafPath, Any]
) -> dict[LeafPath, Any]:
    """Read the wanted leaves; those that are stored and not wanted are not touched.

    Args:
        folder: the checkpoint.
        stored: every leaf it holds.
        wanted: `jax.ShapeDtypeStruct` by path, a jax array where it has a sharding, host otherwise.
    """
    from orbax.checkpoint import v1 as ocp

    template = {
        path: _place(wanted[path]) if path in wanted else ocp.PLACEHOLDER for path in stored
    }
    out = ocp.load_checkpointables(str(folder / FOLDER), {"state": nested(template)})
    found = leaves_of(out["state"])
    return {path: found[path] for path in wanted}


def read_data(folder: Path) -> dict[str, np.ndarray]:
    """Read the data rows: `index`, `count`, `length` [P] and `position` [P, longest] bytes."""
    from orbax.checkpoint import v1 as ocp

    metadata = ocp.checkpointables_metadata(str(folder / FOLDER)).metadata["data"]
    template = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in metadata.items()}
    out = ocp.load_checkpointables(str(folder / FOLDER), {"data": template})
    return {name: np.asarray(value) for name, value in out["data"].items()}


def _place(wanted: Any) -> Any:
    if getattr(wanted, "sharding", None) is not None:
        return jax.ShapeDtypeStruct(wanted.shape, wanted.dtype, sharding=wanted.sharding)
    return np.empty(wanted.shape, wanted.dtype)
