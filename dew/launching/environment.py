"""What the environment says about the pool that a process belongs to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from dew.errors import InputRefused, shown

COORDINATOR, PROCESSES, PROCESS = "DEW_COORDINATOR", "DEW_NUM_PROCESSES", "DEW_PROCESS_ID"
HEARTBEAT = "DEW_HEARTBEAT_SECONDS"
"""What `dew launch` sets: host:port of process 0, how many there are, which one this is."""

JOINED = "DEW_JOINED"
"""Set by a process that has joined: what it starts itself is no second bearer of its rank."""

COORDINATOR_PORT = 8476
"""Where process 0 listens when the engine names hosts and no port."""

# Slurm numbers the batch script and an interactive shell as steps of their own, from here up.
_FIRST_SPECIAL_STEP = 4_294_967_290


@dataclass(frozen=True)
class Place:
    """A process's place in its pool.

    Args:
        source: what said so: "dew", "kubernetes", "skypilot" or "slurm".
        coordinator: host:port of process 0; None where jax finds it.
        processes: how many there are, at least 1.
        process: which one this is, from 0.
    """

    source: str
    coordinator: str | None
    processes: int
    process: int


def place(environ: Mapping[str, str]) -> Place | None:
    """Return this process's place in a pool, or None where nothing names one.

    Reads, in this order, the variables of `dew launch`, of a Kubernetes training job
    (`JAX_NUM_PROCESSES` and kin), of SkyPilot, and of a Slurm step of several tasks. A program
    that a rank has started finds none.

    Raises:
        InputRefused: some variables of a set are there and others are not, or they do not fit.
    """
    if environ.get(JOINED):
        return None
    found = (
        _named(environ, "dew", (COORDINATOR, PROCESSES, PROCESS))
        or _kubernetes(environ)
        or _skypilot(environ)
        or _slurm(environ)
    )
    if found is not None and not 0 <= found.process < found.processes:
        raise InputRefused(
            f"this is process {found.process} of {found.processes} by the {found.source} "
            "variables; expected a number from 0 to one less than how many there are"
        )
    return found


def slurm_step(environ: Mapping[str, str]) -> bool:
    """Tell whether `srun` started this process; a batch script or a shell is no such step."""
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    return "SLURM_JOB_ID" in environ and step.isdigit() and int(step) < _FIRST_SPECIAL_STEP


def slurm_allocation(environ: Mapping[str, str]) -> bool:
    """Tell whether this process has a Slurm allocation in which it can start tasks."""
    return "SLURM_JOB_ID" in environ and not slurm_step(environ)


def in_ray_worker() -> bool:
    """Tell whether this process is a worker of Ray Train; imports nothing."""
    train = sys.modules.get("ray.train")
    if train is None:
        return False
    try:
        return bool(train.get_context().get_world_size())
    except Exception:
        # Ray raises errors of several kinds outside of a worker.
        return False


def heartbeat_seconds(environ: Mapping[str, str]) -> int | None:
    """Return the heartbeat that `dew launch --heartbeat` asked for, in seconds, or None."""
    return _whole(environ, HEARTBEAT) if HEARTBEAT in environ else None


def _named(
    environ: Mapping[str, str], source: str, names: tuple[str, str, str], port: str = ""
) -> Place | None:
    """Return the place that three variables name: coordinator, processes, process."""
    there = [name for name in names if environ.get(name)]
    if not there:
        return None
    missing = [name for name in names if name not in there]
    if missing:
        raise InputRefused(
            f"{' and '.join(there)} {'is' if len(there) == 1 else 'are'} set, but not "
            f"{' and '.join(missing)}; set all of them, or none to run as one process"
        )
    coordinator = with_port(environ[names[0]], environ.get(port, ""), names[0])
    return Place(source, coordinator, _whole(environ, names[1]), _whole(environ, names[2]))


def _kubernetes(environ: Mapping[str, str]) -> Place | None:
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    counted = any(environ.get(name) for name in names[1:])
    # jax itself takes the address alone beside Slurm's own variables.
    if not counted and ("SLURM_JOB_ID" in environ or "SKYPILOT_NODE_RANK" in environ):
        return None
    return _named(environ, "kubernetes", names, "JAX_COORDINATOR_PORT")


def _skypilot(environ: Mapping[str, str]) -> Place | None:
    names = ("SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK")
    if not any(environ.get(name) for name in names):
        return None
    first = environ.get(names[0], "").split("\n")[0].strip()
    return _named({**environ, names[0]: first}, "skypilot", names, "DEW_COORDINATOR_PORT")


def _slurm(environ: Mapping[str, str]) -> Place | None:
    names = ("SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID")
    if not slurm_step(environ) or not all(environ.get(name) for name in names):
        return None
    count = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    if not environ.get(count):
        return None
    return Place("slurm", None, _whole(environ, count), _whole(environ, "SLURM_PROCID"))


def with_port(address: str, port: str, name: str) -> str:
    """Return `address` as host:port, with `port` (or the default one) where it has none.

    Raises:
        InputRefused: the port is no number from 1 to 65535, or there is no host.
    """
    host, colon, own = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, own = address, port or str(COORDINATOR_PORT)
    if not host or not own.isdigit() or not 0 < int(own) < 65536:
        raise InputRefused(
            f"{name} is {shown(address)} with port {shown(own)}; expected host:port, as in "
            "10.0.0.1:8476"
        )
    return f"{host}:{own}"


def _whole(environ: Mapping[str, str], name: str) -> int:
    text = environ[name].strip()
    if not text.isdigit() or len(text) > 9:
        raise InputRefused(f"{name} is {shown(environ[name])}; expected a whole number")
    return int(text)
