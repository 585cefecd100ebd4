"""One rank whose third (or last) device holds another bit: prints what the check says."""

from __future__ import annotations

import json
import sys

from pools import join

SETTINGS = json.loads(sys.argv[1])
join(SETTINGS)

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402

from dew.training.replicas import check_replicas  # noqa: E402


def held(odd: np.ndarray) -> dict:
    """Return a replicated array that one device holds as `odd`."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    whole = np.arange(6, dtype=np.float32)
    chosen = jax.devices()[min(2, jax.device_count() - 1)]
    parts = [
        jax.device_put(odd if device == chosen else whole, device) for device in jax.local_devices()
    ]
    sharding = NamedSharding(mesh, PartitionSpec())
    return {"w": jax.make_array_from_single_device_arrays((6,), sharding, parts)}


def said(state: dict) -> str | None:
    try:
        check_replicas(state)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    whole = np.arange(6, dtype=np.float32)
    flipped = whole.copy()
    flipped.view(np.uint32)[3] ^= 1
    swapped = whole[[0, 2, 1, 3, 4, 5]]
    report = {"sound": said(held(whole)), "flipped": said(held(flipped))}
    print(json.dumps({**report, "swapped": said(held(swapped))}), flush=True)


if __name__ == "__main__":
    main()
