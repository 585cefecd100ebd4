"""Starts the ranks of a pool as plain processes, for tests of what a pool does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE = 400


@dataclass(frozen=True)
class Ended:
    """How one rank ended."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> Any:
        """The last line of its output, as JSON."""
        assert self.status == 0, self.err[-3000:]
        return json.loads(self.out.splitlines()[-1])


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def start(script: str, ranks: int, **settings: Any) -> list[subprocess.Popen[str]]:
    """Start `script` once a rank with its settings as JSON; rank, ranks and port are added."""
    port = free_port()
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    environment.pop("XLA_FLAGS", None)
    return [
        subprocess.Popen(
            [
                sys.executable,
                str(HERE / script),
                json.dumps({**settings, "rank": rank, "ranks": ranks, "port": port}),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def ended(processes: list[subprocess.Popen[str]], patience: float = PATIENCE) -> list[Ended]:
    """Wait for every rank; one that does not end in time is killed."""
    # Read side by side: a rank whose pipe is full would keep its peers waiting.
    deadline = time.monotonic() + patience
    with ThreadPoolExecutor(len(processes)) as readers:
        reading = [readers.submit(process.communicate) for process in processes]
        while not all(one.done() for one in reading) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in processes:
            if process.poll() is None:
                process.kill()
    outcomes = [one.result() for one in reading]
    return [
        Ended(process.returncode, out, err)
        for process, (out, err) in zip(processes, outcomes, strict=True)
    ]


def run(script: str, ranks: int, **settings: Any) -> list[Ended]:
    """Start `script` on every rank and wait for all."""
    return ended(start(script, ranks, **settings))


def join(settings: dict[str, Any], *, heartbeat: int = 100) -> None:
    """Make this process a rank of the pool that its settings name; one rank makes no pool."""
    import jax

    jax.config.update("jax_num_cpu_devices", settings.get("devices", 1))
    if settings["ranks"] == 1:
        return
    # jax's own notifier would take SIGTERM before a run's handler hears it.
    jax.config.update("jax_enable_preemption_service", False)
    address = f"127.0.0.1:{settings['port']}"
    jax.distributed.initialize(
        address,
        settings["ranks"],
        settings["rank"],
        cluster_detection_method="deactivate",
        coordinator_bind_address=address,
        heartbeat_timeout_seconds=heartbeat,
    )
