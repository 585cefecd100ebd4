"""Which devices this machine has to share out among processes, told without opening them."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from importlib import metadata

from dew.errors import InputRefused

_GPU_NAMES = {"cuda", "gpu"}


def kind(environ: Mapping[str, str]) -> str:
    """Return "gpu", "cpu", or "other" where one process takes all devices (TPU, ROCm)."""
    platforms = environ.get("JAX_PLATFORMS", "").replace(" ", "")
    if platforms:
        named = platforms.split(",")
        if _GPU_NAMES & set(named):
            return "gpu"
        return "cpu" if named == ["cpu"] else "other"
    names = {(found.metadata["Name"] or "").lower() for found in metadata.distributions()}
    if gpus(environ) and any(name.startswith("jax-cuda") for name in names):
        return "gpu"
    tpu = "libtpu" in names and (glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))
    return "other" if tpu or any(name.startswith("jax-rocm") for name in names) else "cpu"


def gpus(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the GPUs that a process started here would see."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    return [str(index) for index in range(len(glob.glob("/dev/nvidia[0-9]*")))]


def share(kind: str, environ: Mapping[str, str], processes: int, each: int) -> list[dict[str, str]]:
    """Return the variables that give every process of this machine its devices.

    Args:
        kind: "cpu", "gpu" or "other".
        environ: the launcher's own variables.
        processes: how many, at least 1.
        each: devices a process, at least 1.

    Raises:
        InputRefused: the machine has too few GPUs, or several processes cannot share it.
    """
    if kind == "cpu":
        return [
            {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(each)} for _ in range(processes)
        ]
    if kind == "other":
        if processes > 1:
            raise InputRefused(
                f"{processes} processes on this machine: dew shares out CPU cores and NVIDIA GPUs "
                "only; start one process here, or set JAX_PLATFORMS=cpu"
            )
        return [{}]
    names = gpus(environ)
    if len(names) < processes * each:
        raise InputRefused(
            f"{processes} process(es) with {each} GPU(s) each need {processes * each}; this "
            f"machine shows {len(names)} ({', '.join(names) or 'none'}). Take fewer processes, "
            "or JAX_PLATFORMS=cpu"
        )
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(names[rank * each : (rank + 1) * each])}
        for rank in range(processes)
    ]
