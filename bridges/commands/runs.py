"""`dew runs`: the runs below a folder, and what two of them differ in."""

from __future__ import annotations

from dew.cli.command import Command, Option, Settings

COMMAND = Command(
    "runs",
    "list the runs below a folder, or compare two of them",
    (
        Option(
            "folder",
            "text",
            ".",
            "where to look; output folders of dew finetune, at any depth",
            positional=True,
        ),
        Option(
            "compare",
            "texts",
            (),
            "two output folders: the settings and scores in which they differ",
        ),
    ),
    run="bridges.commands.runs:run",
)


def run(settings: Settings) -> int:
    """Print the table and return 0.

    Raises:
        InputRefused: no such folder, or not two runs to compare.
    """
    from pathlib import Path

    from bridges.finetune.run_list import comparison, runs_below, table

    if settings["compare"]:
        print(comparison([Path(path) for path in settings["compare"]]))
    else:
        print(table(runs_below(Path(settings["folder"]))))
    return 0
