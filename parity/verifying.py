"""Does the certificate that lies beside a checkpoint hold for the bytes that are there?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dew.errors import InputRefused
from parity.check import NOT_PROVEN
from parity.checkpoint_files import file_changes, file_digests
from parity.evidence import installed
from parity.running import REPORT
from parity.writing import CERTIFICATE


@dataclass(frozen=True)
class Holding:
    """Whether a certificate holds, and what is to be said of it, a line each."""

    holds: bool
    lines: tuple[str, ...]


def verified(path: str | Path) -> Holding:
    """Hold the files of a checkpoint against the certificate beside them.

    Args:
        path: a Hugging Face folder or a GGUF file.

    Returns:
        It holds where every check had passed and no file is another, gone or new. Other versions
        of the packages are told, and change nothing: the bytes are what was certified.

    Raises:
        InputRefused: there is no such path, or the certificate cannot be read.
    """
    path = Path(path)
    if not path.exists():
        raise InputRefused(f"{path} does not exist; give the folder or the GGUF file")
    folder = path if path.is_dir() else path.parent
    places = [folder / CERTIFICATE, folder / REPORT]
    place = next((place for place in places if place.is_file()), None)
    if place is None:
        remedy = f"python -m parity certify {path} --write"
        return Holding(False, (f"{NOT_PROVEN}there is no {CERTIFICATE}; run: {remedy}",))
    record = _read(place)
    problems = _failures(record) + file_changes(record["files"], file_digests(path))
    said = [f"  {text}" for text in _other_versions(record["versions"])]
    made = f"{place.name} of {record.get('made', 'an unknown day')}"
    if problems:
        return Holding(False, (f"{NOT_PROVEN}{made} does not hold:", *_indented(problems), *said))
    first = f"proven: {made} holds, {len(record['files'])} files as certified"
    return Holding(True, (first, *said))


def _read(place: Path) -> Mapping[str, Any]:
    try:
        record = json.loads(place.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputRefused(f"{place} is no JSON ({error}); certify the checkpoint anew") from error
    wanted = {"passed": bool, "files": dict, "versions": dict, "verdicts": list}
    absent = [
        name
        for name, kind in wanted.items()
        if not (isinstance(record, dict) and isinstance(record.get(name), kind))
    ]
    if absent or not all(isinstance(verdict, dict) for verdict in record["verdicts"]):
        named = ", ".join(absent) or "a verdict's fields"
        raise InputRefused(f"{place} lacks {named}; certify the checkpoint anew")
    return record


def _failures(record: Mapping[str, Any]) -> list[str]:
    failed = [str(v.get("name")) for v in record["verdicts"] if v.get("passed") is not True]
    if failed:
        return [f"checks that did not agree when it was made: {', '.join(failed)}"]
    return (
        [] if record["passed"] and record["verdicts"] else ["nothing was proven when it was made"]
    )


def _other_versions(made_with: Mapping[str, str]) -> list[str]:
    here = installed()
    return [
        f"{name} was {made_with[name]}, is {here[name]} here"
        for name in here
        if name in made_with and made_with[name] != here[name]
    ]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]
