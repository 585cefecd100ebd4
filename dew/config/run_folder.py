"""The folder of one run: its run.json, and whether a configuration may go on in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dew.checkpoints.steps import steps_of
from dew.config.durable import write_json
from dew.config.run import BESIDE
from dew.errors import InputRefused, listed, shown

RUN = "run.json"

FREE = frozenset(
    f"trainer.{name}"
    for name in (
        *("name", "checkpoint_dir", "steps", "log_every", "eval_every", "checkpoint_every"),
        *("keep", "metrics", "preview"),
    )
)
"""What may differ between two calls on one folder without making it another run; so may the mesh,
for a checkpoint fits any."""


def begin(folder: Path, config: Mapping[str, Any], versions: Mapping[str, str]) -> None:
    """Write run.json, once the folder is sure to hold no run of another configuration.

    Args:
        folder: of the run.
        config: `RunConfig.to_dict`.
        versions: package name to version.

    Raises:
        InputRefused: checkpoints of another configuration lie there; each difference is named.
    """
    path = folder / RUN
    if path.exists() and steps_of(folder).whole:
        differing = _differences(_read(path), config)
        if differing:
            raise InputRefused(
                listed(
                    f"{folder} holds a run of another configuration; choose another name, or "
                    "give these as they were:",
                    differing,
                )
            )
    write_json(path, {**config, "versions": dict(versions)})


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputRefused(
            f"{path}: not readable as JSON ({error}); expected the record of the run whose "
            "checkpoints lie there. Put it back, or choose another name."
        ) from error
    if not isinstance(found, dict):
        raise InputRefused(f"{path}: expected a mapping; found {type(found).__name__}")
    return {name: value for name, value in found.items() if name not in BESIDE}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    was, here = _leaves(before, ""), _leaves(now, "")
    return [
        f"{path}: was {shown(was.get(path), 60)}, now {shown(here.get(path), 60)}"
        for path in sorted({*was, *here})
        if path not in FREE
        and not path.startswith("mesh.")
        and json.dumps(was.get(path)) != json.dumps(here.get(path))
    ]


def _leaves(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {path: value}
    found: dict[str, Any] = {}
    for name, part in value.items():
        found |= _leaves(part, f"{path}.{name}" if path else name)
    return found
