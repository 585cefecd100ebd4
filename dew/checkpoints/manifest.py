"""What a checkpoint says of itself: step, metrics, leaves, and the sha256 of every file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dew.errors import InputRefused, listed, shown

FORMAT = 1
NAME = "dew/checkpoint.json"


class CheckpointDamaged(InputRefused):
    """A checkpoint whose files are not the ones that were written."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """One checkpoint's description.

    Attributes:
        step: the accepted microbatches it holds.
        metrics: what the save reported, empty where it reported nothing.
        leaves: nested dicts of `[dtype name, shape]`, by field.
        unset: the fields that were None.
        files: sha256 in hex by path relative to the checkpoint.
    """

    step: int
    metrics: Mapping[str, float]
    leaves: Mapping[str, Any]
    unset: tuple[str, ...]
    files: Mapping[str, str]

    def text(self) -> str:
        """Return the manifest as JSON; a metric that is not finite is left out."""
        metrics = {name: value for name, value in self.metrics.items() if abs(value) < float("inf")}
        record = {"format": FORMAT, **dataclasses.asdict(self), "metrics": metrics}
        return json.dumps(record, indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint folder.

    Raises:
        CheckpointDamaged: there is none, or it is not one that we wrote.
        InputRefused: a newer dew wrote it.
    """
    path = folder / NAME
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        version = record["format"]
        values = {field.name: record[field.name] for field in dataclasses.fields(Manifest)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointDamaged(f"{path}: not a checkpoint's manifest ({shown(error)})") from error
    if version != FORMAT:
        raise InputRefused(
            f"{path}: format {shown(version)}, this dew reads format {FORMAT}. Use the dew that "
            "wrote it."
        )
    return Manifest(**{**values, "unset": tuple(values["unset"])})


def file_digest(path: Path) -> str:
    """Return the sha256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare every file that the manifest names with its digest.

    Raises:
        CheckpointDamaged: files are gone or hold other bytes; all are listed.
    """
    problems = []
    for name, digest in manifest.files.items():
        path = folder / name
        try:
            if file_digest(path) != digest:
                problems.append(f"{name}: other bytes ({path.stat().st_size} of them)")
        except OSError as error:
            problems.append(f"{name}: {error.strerror}")
    if problems:
        raise CheckpointDamaged(
            listed(f"{folder}: {len(problems)} of {len(manifest.files)} files damaged:", problems)
        )
