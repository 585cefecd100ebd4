"""The config of the model that a run starts from, before any weight is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dew.cli.command import Settings


def source_config(settings: Settings) -> dict[str, Any]:
    """Return the config.json of the settings' model, or what a file without one states.

    Raises:
        InputRefused: a source that cannot be found, or whose config is no JSON.
    """
    from bridges.files.json_file import read_json
    from bridges.files.tensors import open_tensors
    from bridges.hub import resolve

    path = Path(resolve(settings["model_name_or_path"], settings["model_revision"]))
    if path.is_dir() and (path / "config.json").exists():
        return read_json(path / "config.json")
    opened: Any = open_tensors(path)
    return opened.config()
