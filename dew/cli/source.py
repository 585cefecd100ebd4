"""Which model a command means: a flag's, a run's result, an adapter's merged copy."""

from __future__ import annotations

from pathlib import Path

from dew.cli.command import Settings

MERGED = "merged"


def model_of(settings: Settings) -> str:
    """Return the model to read.

    A flag or a position names it. With only a run's config.yaml it is what that run wrote to its
    `output_dir`. A run's folder that holds an adapter stands for the merged model inside it.
    """
    source, run_folder = settings["model_name_or_path"], settings["output_dir"]
    if settings.origins["model_name_or_path"] != "flag" and run_folder is not None:
        source = run_folder
    return merged_copy(source)


def merged_copy(source: str) -> str:
    """Return the merged model inside a run's adapter folder, or `source` itself."""
    folder = Path(source).expanduser()
    merged = folder / MERGED
    if (folder / "adapter_config.json").is_file() and (merged / "config.json").is_file():
        return str(merged)
    return source
