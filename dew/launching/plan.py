"""What to start: ranks on this machine, a launcher on each of several, or the tasks of `srun`."""

from __future__ import annotations

import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dew.errors import InputRefused, shown
from dew.launching.environment import COORDINATOR, HEARTBEAT, PROCESS, PROCESSES

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+@)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
_CARRIED = re.compile(r"(?:JAX|XLA|NCCL|HF)_\w+|DEW_CACHE|PYTHONPATH|LIBTPU_INIT_ARGS")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD")
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy")

RANK, SSH, SRUN = "rank", "ssh", "srun"

ORDERS = "DEW_LAUNCH_ORDERS"
"""Set for a launcher that another one started over ssh, which carries no signals: it reads their
names on its standard input, and takes the end of that for the end of the other."""


@dataclass(frozen=True)
class Start:
    """A process that the launcher starts.

    Args:
        kind: RANK, or SSH or SRUN, whose output is that of ranks elsewhere.
        name: "rank 1", "host h2" or "srun".
        argv: its command.
        variables: what its environment holds beyond the launcher's own.
        rank: which one it is; None for what is no rank itself.
    """

    kind: str
    name: str
    argv: tuple[str, ...]
    variables: Mapping[str, str]
    rank: int | None = None

    def __str__(self) -> str:
        """Return the line that a shell takes to start the same."""
        told = (f"{name}={shlex.quote(value)}" for name, value in self.variables.items())
        return " ".join([*told, shlex.join(self.argv)])


@dataclass(frozen=True)
class Numbers:
    """Which ranks a launcher starts.

    Args:
        here: how many.
        first: the lowest.
        total: how many the pool has.
        coordinator: host:port of rank 0; None for a pool of one.
        heartbeat: seconds, or None for the default.
    """

    here: int
    first: int
    total: int
    coordinator: str | None
    heartbeat: int | None = None

    def variables(self, index: int) -> dict[str, str]:
        """Return what the environment of this launcher's `index`-th rank says of the pool."""
        if self.coordinator is None:
            return {}
        told = {
            COORDINATOR: self.coordinator,
            PROCESSES: str(self.total),
            PROCESS: str(self.first + index),
        }
        return told if self.heartbeat is None else {**told, HEARTBEAT: str(self.heartbeat)}


def rank_starts(
    command: Sequence[str],
    numbers: Numbers,
    devices: Sequence[Mapping[str, str]],
    environ: Mapping[str, str],
) -> list[Start]:
    """Return the ranks of this machine, each with its place and its devices.

    Args:
        command: what each runs.
        numbers: which ranks.
        devices: each one's variables for its devices.
        environ: the launcher's own variables.
    """
    # Through a pipe Python would hold a rank's lines back.
    common = {"PYTHONUNBUFFERED": environ.get("PYTHONUNBUFFERED") or "1"}
    if numbers.coordinator and any(environ.get(name) for name in _PROXIES):
        # gRPC would take the way to the coordinator through the proxy.
        host = numbers.coordinator.rpartition(":")[0].strip("[]")
        past = [name for name in (environ.get("no_grpc_proxy"), environ.get("no_proxy")) if name]
        common["no_grpc_proxy"] = ",".join([*past[:1], host])
    return [
        Start(
            RANK,
            f"rank {numbers.first + index}",
            tuple(command),
            {**numbers.variables(index), **devices[index], **common},
            numbers.first + index,
        )
        for index in range(numbers.here)
    ]


def host_starts(
    words: Sequence[str],
    hosts: Sequence[str],
    settings: Sequence[str],
    each: int,
    coordinator: str,
    folder: str,
    environ: Mapping[str, str],
) -> list[Start]:
    """Return one launcher a host, started over ssh in the same folder with the same Python.

    Args:
        words: the program and its arguments, for the launchers to read.
        hosts: as ssh takes them, in the order of their ranks.
        settings: flags for every launcher.
        each: ranks a host.
        coordinator: host:port of rank 0.
        folder: where to run, on every host.
        environ: the launcher's own variables; those of jax, XLA, NCCL and Hugging Face go along,
            secrets do not.

    Raises:
        InputRefused: a host's name that ssh could take for something else.
    """
    carried = {
        name: value
        for name, value in sorted(environ.items())
        if _CARRIED.fullmatch(name) and not _SECRET.search(name)
    }
    starts = []
    for index, host in enumerate(hosts):
        if not _HOST.fullmatch(host):
            raise InputRefused(f"hosts: {shown(host)} is no name of a host; expected [user@]name")
        launch = [sys.executable, "-m", "dew.cli.main", "launch", "--processes", str(each)]
        launch += ["--first_process", str(index * each)]
        launch += ["--total_processes", str(each * len(hosts)), "--coordinator", coordinator]
        launch += [*settings, "--", *words]
        there = [f"{name}={shlex.quote(value)}" for name, value in carried.items()]
        line = f"cd {shlex.quote(folder)} && exec env {ORDERS}=1 {' '.join([*there, ''])}"
        argv = ("ssh", "-o", "BatchMode=yes", host, line + shlex.join(launch))
        starts.append(Start(SSH, f"host {host}", argv, {}))
    return starts


def srun_start(
    command: Sequence[str],
    each: int | None,
    variables: Mapping[str, str],
    environ: Mapping[str, str],
) -> Start:
    """Return `srun` with one task a rank, in this allocation.

    Args:
        command: what each task runs.
        each: tasks a node; None for what the allocation says.
        variables: more for the tasks' environment.
        environ: the launcher's own variables.
    """
    tasks: list[str] = []
    if each is not None:
        nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
        tasks = [f"--ntasks={each * int(nodes)}", f"--ntasks-per-node={each}"]
    argv = ("srun", "--label", "--kill-on-bad-exit=1", *tasks, *command)
    return Start(SRUN, "srun", argv, {"PYTHONUNBUFFERED": "1", **variables})


def free_port() -> int:
    """Return a port of this machine that nobody holds at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
