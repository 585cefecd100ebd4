"""Saves and restores for tests to break, alone or as one rank of a pool.

`python saving_child.py DIRECTORY STEP` saves one checkpoint. `python saving_child.py PLAN` takes
JSON: how many devices, which rank of which pool, and what to do, an action a line of its answer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from typing import Any

import jax
import numpy as np
import optax

from dew.checkpoints import Checkpoints
from dew.data import DataPartition

SIZES = {"embed": (24, 16), "kernel": (3, 16, 32), "bias": (32,), "scale": (8,)}
CUTS = {"embed": ("fsdp", None), "kernel": (None, "fsdp", "data"), "bias": ("fsdp",), "scale": ()}


def save(directory: str, step: int) -> None:
    """Save a state whose values tell the step."""
    checkpoints = Checkpoints(directory, keep=1)
    state = {"w": np.full(2000, step, np.float32), "b": np.arange(3) + step}
    checkpoints.save(step, state, b"%d" % step, share=DataPartition())
    checkpoints.wait()


def expected(step: int) -> dict[str, Any]:
    """The state on the host: parameters, AdamW's state over them, a key, and a NumPy number."""
    draw = np.random.default_rng(step)
    params = {name: draw.standard_normal(size).astype(np.float32) for name, size in SIZES.items()}
    params["scale"] = params["scale"].astype(jax.numpy.bfloat16)
    moments = jax.eval_shape(optax.adamw(1e-3).init, params)
    opt_state = jax.tree.map(
        lambda leaf: (100 * draw.standard_normal(leaf.shape)).astype(leaf.dtype), moments
    )
    key = np.asarray(jax.random.key_data(jax.random.key(step)))
    return {"params": params, "opt_state": opt_state, "key": key, "step": np.int32(step)}


def mesh_of() -> jax.sharding.Mesh:
    """All devices as (data, fsdp); fsdp takes two where it can."""
    count = jax.device_count()
    fsdp = 2 if count > 1 else 1
    auto = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((count // fsdp, fsdp), ("data", "fsdp"), axis_types=auto)


def shardings(tree: Any, mesh: jax.sharding.Mesh, flipped: bool = False) -> Any:
    """Where each leaf lies; a leaf without a cut lies everywhere."""

    def place(path: Any, leaf: Any) -> jax.sharding.NamedSharding:
        cut = CUTS.get(str(getattr(path[-1], "key", "")), ())[: np.ndim(leaf)]
        if flipped:
            cut = tuple({"data": "fsdp", "fsdp": "data"}.get(name, name) for name in cut)
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*cut))

    return jax.tree_util.tree_map_with_path(place, tree)


def placed(tree: Any, flipped: bool = False) -> Any:
    """Return host arrays as global arrays over all devices of the pool."""
    where = shardings(tree, mesh_of(), flipped)
    return jax.tree.map(
        lambda leaf, sharding: jax.make_array_from_callback(
            np.shape(leaf), sharding, lambda index: np.asarray(leaf)[index]
        ),
        tree,
        where,
    )


def differences(found: Any, tree: Any) -> list[str]:
    """Name the leaves whose values on this process are not those expected, bit for bit."""
    if jax.tree.structure(found) != jax.tree.structure(tree):
        return [f"structure {jax.tree.structure(found)}"]
    pairs = zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(tree), strict=True)
    wrong = []
    for (path, leaf), right in pairs:
        right = np.asarray(right)
        parts = [(Ellipsis, leaf)]
        if isinstance(leaf, jax.Array):
            parts = [(shard.index, np.asarray(shard.data)) for shard in leaf.addressable_shards]
        same = all(part.tobytes() == right[index].tobytes() for index, part in parts)
        if not same or leaf.dtype != right.dtype or leaf.shape != right.shape:
            wrong.append(jax.tree_util.keystr(path))
    return wrong


class WithExtra(Checkpoints):
    """Writes a file from the parameters alone."""

    _extra_fields = ("params",)

    def _write_extra(self, step: int, state: Any, folder: Any) -> None:
        wrong = differences(state["params"], expected(step)["params"])
        unread = type(state["opt_state"][0].mu["kernel"]).__name__
        (folder / "extra.json").write_text(json.dumps([step, wrong, unread]))


class Rank:
    """The actions that a plan may name; each returns what JSON carries."""

    def __init__(self, plan: dict[str, Any]):
        self.plan = plan
        self.checkpoints: Any = None
        self.share = DataPartition(plan["rank"], plan["ranks"])

    def open(self, directory: str, **options: Any) -> None:
        self.checkpoints = Checkpoints(directory, **options)

    def open_extra(self, directory: str) -> None:
        self.checkpoints = WithExtra(directory)

    def save(self, step: int, local: bool = False, loss: float | None = None) -> None:
        state = placed(expected(step))
        if local:
            self.checkpoints.save_local(step, state, self._position(step), share=self.share)
            return
        metrics = None if loss is None else {"loss": loss}
        self.checkpoints.save(step, state, self._position(step), metrics, share=self.share)

    def wait(self) -> str | None:
        try:
            self.checkpoints.wait()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def restore(self, step: int | None = None, flipped: bool = False, seed: int = 0) -> Any:
        """Restore onto this pool's devices, and compare with what its step should be."""
        shapes = expected(seed)
        template = jax.tree.map(
            lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
            shapes,
            shardings(shapes, mesh_of(), flipped),
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                state, position = self.checkpoints.restore(template, step, share=self.share)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        found = int(np.asarray(state["step"].addressable_data(0)))
        return {
            "step": found,
            "wrong": differences(state, expected(found)),
            "position": position.decode(),
            "warnings": [str(warning.message) for warning in caught],
        }

    def host(self, step: int | None = None) -> Any:
        """Restore to the host without a template."""
        state, _ = self.checkpoints.restore(step=step)
        right = expected(int(state["step"]))
        values = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(right)]
        found = [leaf.tobytes() for leaf in jax.tree.leaves(state)]
        kinds = sorted({type(leaf).__name__ for leaf in jax.tree.leaves(state)})
        return {"same": sorted(found) == sorted(values), "kinds": kinds}

    def steps(self) -> Any:
        return {"latest": self.checkpoints.latest, "best": self.checkpoints.best}

    def source(self, step: int) -> str:
        return self.checkpoints.source(step)

    def claim(self) -> str | None:
        try:
            self.checkpoints.claim()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def die(self, rank: int) -> None:
        """SIGKILL one rank, which has written its part of the save under way."""
        if rank == self.plan["rank"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def die_in(self, rank: int, name: str) -> None:
        """SIGKILL one rank inside a function of the writer's thread."""
        from dew.checkpoints import saving

        if rank == self.plan["rank"]:
            setattr(saving, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))

    def fail_in(self, rank: int, name: str) -> None:
        """Make a function of the writer's thread raise on one rank."""
        from dew.checkpoints import saving

        def fail(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        if rank == self.plan["rank"]:
            self.kept = getattr(saving, name)
            setattr(saving, name, fail)

    def mend(self, rank: int, name: str) -> None:
        from dew.checkpoints import saving

        if rank == self.plan["rank"]:
            setattr(saving, name, self.kept)

    def _position(self, step: int) -> bytes:
        own = f" of {self.share.index}" if self.plan.get("own_positions") else ""
        return f"position {step}{own}".encode()


def main(plan: dict[str, Any]) -> None:
    jax.config.update("jax_num_cpu_devices", plan["devices"])
    if plan["ranks"] > 1:
        from dew.artifacts import end_pool_on_failure

        address = f"127.0.0.1:{plan['port']}"
        jax.distributed.initialize(
            address,
            plan["ranks"],
            plan["rank"],
            cluster_detection_method="deactivate",
            coordinator_bind_address=address,
            heartbeat_timeout_seconds=plan.get("heartbeat", 100),
        )
        end_pool_on_failure()
    rank = Rank(plan)
    for name, *arguments in plan["do"]:
        options = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        answer = getattr(rank, name)(*arguments, **options)
        print(json.dumps({"did": name, "answer": answer}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(json.loads(sys.argv[1]))
    else:
        save(sys.argv[1], int(sys.argv[2]))
