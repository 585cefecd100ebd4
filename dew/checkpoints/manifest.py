"""What a checkpoint says of itself: step, metrics, leaves, and the sha256 of every file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dew.errors import InputRefused, listed, shown

FORMAT = 2
NAME = "dew/checkpoint.json"

# The text above its own sha256 is what that one is of.
_SEAL = ',\n "sha256": "'


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
        placement: where the values lay, for a checkpoint of one process's own; see `placement`.
    """

    step: int
    metrics: Mapping[str, float]
    leaves: Mapping[str, Any]
    unset: tuple[str, ...]
    files: Mapping[str, str]
    placement: Mapping[str, Any] | None = None

    def text(self) -> str:
        """Return the manifest as JSON; a metric that is not finite is left out."""
        metrics = {name: value for name, value in self.metrics.items() if abs(value) < float("inf")}
        record = {"format": FORMAT, **dataclasses.asdict(self), "metrics": metrics}
        body = json.dumps(record, indent=1).removesuffix("\n}")
        return f'{body}{_SEAL}{_digest(body)}"\n}}\n'


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint folder.

    Raises:
        CheckpointDamaged: there is none, or it is not one that we wrote.
        InputRefused: a newer dew wrote it.
    """
    path = folder / NAME
    try:
        text = path.read_bytes().decode()
        record = json.loads(text)
        version = record["format"]
        if version == FORMAT:
            values = {field.name: record[field.name] for field in dataclasses.fields(Manifest)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointDamaged(f"{path}: not a checkpoint's manifest ({shown(error)})") from error
    sealed = _is_sealed(text)
    if version != FORMAT:
        # A flipped bit can look like another format; then the seal does not fit.
        kind = InputRefused if sealed else CheckpointDamaged
        raise kind(
            f"{path}: format {shown(version)}, this dew reads format {FORMAT}. Use the dew that "
            "wrote it."
        )
    if not sealed:
        raise CheckpointDamaged(f"{path}: not the text that was written (its sha256 differs)")
    return Manifest(**{**values, "unset": tuple(values["unset"])})


def file_digest(path: Path) -> str:
    """Return the sha256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damaged_files(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Return a line for each file that is gone or holds other bytes than its digest says."""
    problems = []
    for name, digest in files.items():
        path = folder / name
        try:
            if file_digest(path) != digest:
                problems.append(f"{name}: other bytes ({path.stat().st_size} of them)")
        except OSError as error:
            problems.append(f"{name}: {error.strerror}")
    return problems


def damage(folder: Path, problems: Sequence[str], files: int) -> CheckpointDamaged:
    """Return the error that lists a checkpoint's damaged files.

    Args:
        folder: the checkpoint.
        problems: a line for each damaged file.
        files: how many it has.
    """
    return CheckpointDamaged(
        listed(f"{folder}: {len(problems)} of {files} files damaged:", list(problems))
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_sealed(text: str) -> bool:
    body, _, end = text.rpartition(_SEAL)
    return end == f'{_digest(body)}"\n}}\n'
