"""One rank of a pool that agrees, gathers and fails: `pool_artifacts_child.py SETTINGS`."""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from pools import join

SETTINGS = json.loads(sys.argv[1])
join(SETTINGS, heartbeat=SETTINGS.get("heartbeat", 100))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402

from dew import artifacts  # noqa: E402
from dew.artifacts import gather  # noqa: E402
from dew.artifacts.failure import published_failure  # noqa: E402

RANK = SETTINGS["rank"]


def spread(values: np.ndarray) -> jax.Array:
    """Return a global array whose rows lie on all devices."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def caught(operation) -> str | None:
    try:
        operation()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def agreement() -> dict:
    """Agree on values, on failures, and on values again."""
    return {
        "value": artifacts.agreed("ours", lambda: RANK * 10),
        "count": artifacts.agree_process_phase(None, phase="input", available=RANK == 0),
        "told": artifacts.broadcast_from_process_zero({"from": RANK}),
        "failed": caught(lambda: artifacts.agreed("opening", _fails)),
        "again": caught(lambda: artifacts.agreed("reading", _fails)),
        "unequal": caught(lambda: artifacts.agreed(f"phase {RANK}", lambda: None)),
        "after": artifacts.agreed("after", lambda: RANK),
        "published": published_failure(),
    }


def _fails() -> None:
    if RANK == 1:
        raise OSError("no such disk")


def late() -> None:
    """The second fails and its grace runs out; the first comes to the agreement after that."""
    artifacts.end_pool_on_failure(1.0 if RANK == 1 else 300.0)

    def opened() -> None:
        if RANK == 1:
            raise OSError("no such disk")
        time.sleep(4.0)

    artifacts.agreed("opening", opened)


def latency() -> dict:
    """Time an agreement."""
    artifacts.agreed("warm", lambda: None)
    seconds = []
    for _ in range(200):
        start = time.perf_counter()
        artifacts.agreed("timed", lambda: None)
        seconds.append(time.perf_counter() - start)
    return {"median": statistics.median(seconds)}


def gathering() -> dict:
    """Gather trees of global, replicated and local leaves."""
    rows = np.arange(8 * 3, dtype=np.float32).reshape(8, 3)
    tree = {"spread": spread(rows), "local": np.full(2, RANK), "text": "kept", "jax": jnp.ones(2)}
    every: Any = artifacts.collective_host(tree, phase="every")
    first: Any = artifacts.collective_host(tree, phase="first", held_by="first")
    whole = artifacts.host(artifacts.TokenScores(spread(rows), spread(rows)))
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    half = NamedSharding(mesh, PartitionSpec(None, "b"))
    table = np.arange(12, dtype=np.int16).reshape(3, 4)
    copies = jax.make_array_from_callback(table.shape, half, lambda index: table[index])
    marks = jax.make_array_from_callback(
        (4,), NamedSharding(mesh, PartitionSpec("a")), lambda index: (table[0] % 2 == 0)[index]
    )
    plans = spread(rows) if RANK else spread(rows[:, :2])
    return {
        "copies": artifacts.host(copies).tolist(),
        "marks": artifacts.host(marks).tolist(),
        "every": every["spread"].tolist(),
        "local": every["local"].tolist(),
        "text": every["text"],
        "first": None if first is None else first["spread"].tolist(),
        "host": type(whole.losses).__name__,
        "unequal": caught(lambda: artifacts.collective_host(plans, phase="unequal")),
    }


def many() -> dict:
    """Gather 1,000 small leaves in groups and, where that is to be timed too, one by one."""
    values = np.ones((jax.device_count() * 4, 16), np.float32)
    leaves = {str(index): spread(values + index) for index in range(SETTINGS["leaves"])}
    calls = []
    plain = gather.gathered_pieces

    def counted(group):
        calls.append(len(group))
        return plain(group)

    gather.gathered_pieces = counted
    gather.GATHER_BYTES = SETTINGS["bytes"]
    artifacts.collective_host(leaves, phase="warm")
    calls.clear()
    start = time.perf_counter()
    out: Any = artifacts.collective_host(leaves, phase="groups")
    grouped = time.perf_counter() - start
    computations = list(calls)
    single = None
    if SETTINGS.get("one_by_one"):
        artifacts.collective_host(leaves["0"], phase="warm")
        start = time.perf_counter()
        for leaf in leaves.values():
            artifacts.collective_host(leaf, phase="one")
        single = time.perf_counter() - start
    return {
        "computations": computations,
        "leaf_bytes": values.nbytes,
        "grouped": grouped,
        "single": single,
        "last": float(out[str(SETTINGS["leaves"] - 1)][0, 0]),
    }


WORK = {
    "agreement": agreement,
    "late": late,
    "latency": latency,
    "gathering": gathering,
    "many": many,
}

if __name__ == "__main__":
    print(json.dumps(WORK[SETTINGS["work"]]()), flush=True)
