"""The records of a run: what was configured, when it began, saved, was traced and ended.

A record reaches a tracker through `Tracker.artifact(record, step)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import metadata
from typing import Any

import numpy as np

COMPLETED, INTERRUPTED, FAILED = "completed", "interrupted", "failed"
"""How a fit ends: all its steps made, told to stop, or by an error."""

PACKAGES = ("dew", "jax", "jaxlib", "flax", "optax", "numpy", "tensorstore")


@dataclass(frozen=True)
class Record:
    """Something a run reports once; a tracker files it by the name of its class."""


@dataclass(frozen=True)
class RunRecord(Record):
    """What a run was asked to do, and by which versions.

    Args:
        name: the run's.
        config: model, data, optimizer and trainer as resolved, in JSON's types.
        versions: package name to version.
        summary: what the caller wants kept beside: data contents, source revisions.
    """

    name: str
    config: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=lambda: package_versions())
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FitStarted(Record):
    """A fit began, or went on.

    Args:
        first_step: microbatches already in.
        steps: the total it trains to.
        parameters: how many numbers are trained.
        processes: in the pool.
        devices: over all processes.
        device_kind: as jax names it.
    """

    first_step: int
    steps: int
    parameters: int
    processes: int
    devices: int
    device_kind: str


@dataclass(frozen=True)
class CheckpointRequested(Record):
    """A save was handed over to be written; it says nothing about whether it landed.

    Args:
        directory: where the checkpoint will be.
        metrics: what was saved as its scores.
    """

    directory: str
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ProfileWindow(Record):
    """A trainer's profiler window was written.

    Args:
        directory: where the trace is.
        steps: how many steps it holds.
    """

    directory: str
    steps: int


@dataclass(frozen=True)
class FitEnded(Record):
    """A fit is over.

    Args:
        status: "completed", "interrupted" or "failed".
        error: the message of what ended it, empty where it completed.
        seconds: wall time of the fit.
    """

    status: str
    error: str = ""
    seconds: float = math.nan


@dataclass(frozen=True)
class TrialFinished(Record):
    """One trial of a sweep is over.

    Args:
        index: its number.
        value: its score; NaN where it failed.
        overrides: dotted path to value, the point that was trained.
        error: what it raised, empty where it finished.
    """

    index: int
    value: float
    overrides: Mapping[str, Any]
    error: str = ""


def record_fields(record: Record) -> dict[str, Any]:
    """Return a record's fields by name, in JSON's types (`json_value`)."""
    return {field.name: json_value(getattr(record, field.name)) for field in fields(record)}


def json_value(value: Any) -> Any:
    """Return `value` in JSON's types; a number that is not finite as "NaN", "+Inf" or "-Inf".

    Mappings, lists, tuples and arrays are walked through; anything unknown becomes its text.
    """
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if isinstance(value, Mapping):
        return {str(key): json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(part) for part in value]
    if hasattr(value, "__array__") and np.asarray(value).dtype.kind in "biuf":
        return json_value(np.asarray(value).tolist())
    return str(value)


def package_versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return the installed versions of packages; those that are absent are left out."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
