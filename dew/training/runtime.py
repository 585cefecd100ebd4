"""Joining the pool that `dew launch`, Slurm, Kubernetes, SkyPilot or Ray started."""

from __future__ import annotations

import errno
import ipaddress
import mmap
import os
import re
import socket
import sys
import time
from importlib import metadata
from pathlib import Path

import jax

from dew.artifacts.coordination import pooled
from dew.artifacts.failure import end_pool_on_failure
from dew.errors import InputRefused
from dew.launching.environment import JOINED, Place, heartbeat_seconds, in_ray_worker, place

HEARTBEAT_SECONDS = 30
"""How long a process may be unheard before its pool ends.

The only thing that tells of a killed process with several devices, whose peers then wait in a
rendezvous inside their own process, and of a stopped one. jax's 100 s is a long time to hold a
cluster; a busy machine that is silent for 30 s is as good as gone.
"""

SHUTDOWN_SECONDS = 300
"""How long a process that is done waits for its peers to be done too.

Work that one process does alone at the end and that may take longer belongs in `agreed`, where
the others wait for it.
"""

JOINING_SECONDS = 300
"""How long a process waits for its peers to come up."""

EXECUTION_TIMEOUT = 1800
"""Seconds that one device execution may take on a GPU, where a stuck peer is waited for for ever.

One execution is one step, or one pass of a decode loop. XLA ends the process at the limit.
"""

PORT_TAKEN_STATUS = 75
"""The exit status of a process 0 whose port another program holds: try again on another."""

_TIMEOUT_FLAG = "xla_gpu_execution_terminate_timeout"


class PortTaken(RuntimeError):
    """Another program listens where process 0 should."""

    exit_status = PORT_TAKEN_STATUS


class PoolUnreachable(RuntimeError):
    """Process 0 does not answer at the coordinator's address."""


def join_pool(
    *, heartbeat_seconds: int | None = None, shutdown_seconds: int = SHUTDOWN_SECONDS
) -> bool:
    """Form a pool with the other processes, if the environment names one.

    Reads `DEW_COORDINATOR`, `DEW_NUM_PROCESSES` and `DEW_PROCESS_ID` (set by `dew launch`), else
    `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` (a Kubernetes training
    job), else SkyPilot's variables, else those of a Slurm step, else the context of a Ray Train
    worker. Where none names a pool of two or more it does nothing.

    Call it before anything uses a device: it does not open the backend itself. Afterwards a
    failure of this process ends it at once, and one of its peers ends it too
    (`dew.artifacts.end_pool_on_failure`).

    Args:
        heartbeat_seconds: how long a silent process counts as alive; `DEW_HEARTBEAT_SECONDS`, or
            HEARTBEAT_SECONDS, where it is not given.
        shutdown_seconds: how long this process waits at its end for the others.

    Returns:
        Whether this process is in a pool now.

    Raises:
        InputRefused: half of a set of variables is there, or they do not fit.
        PortTaken: this is process 0, and its port is another program's.
        PoolUnreachable: process 0 did not answer within JOINING_SECONDS.
        RuntimeError: a device was used already.
    """
    if pooled():
        return True
    found = place(os.environ) or _ray_place()
    if found is None or found.processes < 2:
        return False
    _bound_executions()
    if found.coordinator is not None and found.process == 0:
        _check_port(found.coordinator)
    elif found.coordinator is not None:
        _await_coordinator(found)
    _initialize(found, _heartbeat(heartbeat_seconds), shutdown_seconds)
    os.environ[JOINED] = str(os.getpid())
    end_pool_on_failure()
    return True


def _heartbeat(asked: int | None) -> int:
    seconds = asked if asked is not None else heartbeat_seconds(os.environ)
    seconds = HEARTBEAT_SECONDS if seconds is None else seconds
    if seconds < 2:
        raise InputRefused(f"the heartbeat is {seconds} s; expected at least 2 s")
    return seconds


def _initialize(found: Place, heartbeat: int, shutdown: int) -> None:
    bind = None
    if found.coordinator is not None and "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ:
        # By itself jax listens on every interface, also for a pool that lives on one machine.
        bind = _loopback(found.coordinator)
    jax.distributed.initialize(
        found.coordinator,
        found.processes,
        found.process,
        cluster_detection_method="slurm" if found.source == "slurm" else "deactivate",
        coordinator_bind_address=bind,
        initialization_timeout=JOINING_SECONDS,
        heartbeat_timeout_seconds=heartbeat,
        shutdown_timeout_seconds=shutdown,
    )


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _loopback(address: str) -> str | None:
    """Return the loopback address that `address` names, or None where it names another."""
    host, port = _host_and_port(address)
    if host == "localhost":
        return f"127.0.0.1:{port}"
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        return None
    return address if local else None


def _check_port(address: str) -> None:
    """Raise if another program listens on the port; gRPC would share it with some in silence."""
    bind = _loopback(address)
    host, port = _host_and_port(bind) if bind else ("", _host_and_port(address)[1])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortTaken(
                f"port {port} of {host or socket.gethostname()} is taken by another program; "
                "process 0 has to listen there. Give another: dew launch --coordinator host:port"
            ) from None


def _await_coordinator(found: Place) -> None:
    """Wait until process 0 listens; jax's own wait hears no Ctrl-C and ends in an abort."""
    assert found.coordinator is not None
    host, port = _host_and_port(found.coordinator)
    deadline, pause, last = time.monotonic() + JOINING_SECONDS, 0.01, ""
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), timeout=10).close()
            return
        except OSError as error:
            last = str(error)
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
    raise PoolUnreachable(
        f"process {found.process} of {found.processes}: process 0 did not answer at "
        f"{found.coordinator} within {JOINING_SECONDS} s ({last}). Did it start, and can this "
        "machine reach that port?"
    )


def _ray_place() -> Place | None:
    """Return this Ray Train worker's place; process 0 picks the port and tells the others."""
    if not in_ray_worker():
        return None
    train = sys.modules["ray.train"]
    context = train.get_context()
    rank, size = int(context.get_world_rank()), int(context.get_world_size())
    if size < 2:
        return None
    import ray.train.collective  # pyright: ignore[reportMissingImports]
    import ray.util  # pyright: ignore[reportMissingImports]

    address = None
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            address = f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"
    address = ray.train.collective.broadcast_from_rank_zero(address)
    return Place("ray", address, size, rank)


def _bound_executions() -> None:
    """Let XLA end an execution that outlasts EXECUTION_TIMEOUT, where there are GPUs."""
    flags = os.environ.get("XLA_FLAGS", "")
    if not _on_gpu() or re.search(rf"--{_TIMEOUT_FLAG}\b", flags) or not _known(_TIMEOUT_FLAG):
        return
    os.environ["XLA_FLAGS"] = f"{flags} --{_TIMEOUT_FLAG}={EXECUTION_TIMEOUT}s".strip()


def _on_gpu() -> bool:
    """Tell whether jax will use a GPU, without opening the backend."""
    platforms = jax.config.values["jax_platforms"] or ""
    if platforms:
        return bool({"cuda", "gpu", "rocm"} & set(platforms.split(",")))
    plugins = (found.metadata["Name"] or "" for found in metadata.distributions())
    return os.path.exists("/dev/nvidia0") and any(name.startswith("jax-cuda") for name in plugins)


def _known(flag: str) -> bool:
    """Tell whether this XLA has the flag: one that it does not know would end the process."""
    import jaxlib

    library = Path(jaxlib.__file__).parent / "libjax_common.so"
    if not library.exists():
        return False
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return content.find(flag.encode()) >= 0
