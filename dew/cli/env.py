"""`dew env`: the block to copy into a bug report."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from dew.cli.command import Command, Settings

COMMAND = Command(
    "env",
    "print versions, devices and caches, ready to paste into an issue",
    run="dew.cli.env:run",
)

_PACKAGES = (
    *("dew", "jax", "jaxlib", "flax", "optax", "tensorstore", "numpy", "ml-dtypes"),
    *("safetensors", "tokenizers", "huggingface-hub", "gguf", "jinja2", "pyyaml", "rich"),
    *("pyarrow", "matplotlib", "torch", "transformers"),
)
_VARIABLES = (
    *("JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS", "XLA_CLIENT_MEM_FRACTION"),
    *("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "DEW_CACHE"),
)


def run(settings: Settings) -> int:
    """Print the report and return 0."""
    print("Copy-paste the following information when reporting an issue:\n")
    for name, value in environment():
        print(f"- {name}: {value}")
    return 0


def environment() -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each line of the report."""
    yield "Platform", platform.platform()
    yield "Python", sys.version.split()[0]
    for package in _PACKAGES:
        yield package, _version(package)
    yield from plugins()
    yield "Devices", _devices()
    yield "CPU cores", str(os.cpu_count())
    yield "Memory", _memory()
    for variable in _VARIABLES:
        if variable in os.environ:
            yield variable, os.environ[variable]


def plugins() -> Iterator[tuple[str, str]]:
    """Yield the accelerator plugins of JAX that are installed, with their versions."""
    for found in metadata.distributions():
        name = found.metadata["Name"] or ""
        if name.startswith(("jax-cuda", "jax-rocm", "libtpu", "jax-metal")):
            yield name, found.version


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> str:
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        return f"none usable: {str(error).splitlines()[0]}"
    return f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})"


def _memory() -> str:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        total, free = kibibytes["MemTotal"], kibibytes["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return "unknown"
    return f"{total / 2**20:.1f} GiB, {free / 2**20:.1f} GiB of it available"
