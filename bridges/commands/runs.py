"""`dew runs`: the runs below a folder, what two of them differ in, and a page that shows them."""

from __future__ import annotations

import contextlib

from dew.cli.command import Command, Option, Settings

COMMAND = Command(
    "runs",
    "list the runs below a folder, compare two of them, or show them in a browser",
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
        Option(
            "serve",
            "switch",
            False,
            "show them in a browser of this machine, while they train too",
            ("live",),
        ),
        Option("port", "integer", 8765, "of that page; 0 for any that is free", low=0, high=65535),
    ),
    run="bridges.commands.runs:run",
)


def run(settings: Settings) -> int:
    """Print the table, or serve the page until Ctrl-C, and return 0.

    Raises:
        InputRefused: no such folder, not two runs to compare, or a port that is taken.
    """
    from pathlib import Path

    from bridges.finetune.run_list import comparison, runs_below, table

    if settings["serve"]:
        from bridges.finetune.live_runs import RunServer

        with RunServer(Path(settings["folder"]), settings["port"]) as server:
            print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
        return 0
    if settings["compare"]:
        print(comparison([Path(path) for path in settings["compare"]]))
    else:
        print(table(runs_below(Path(settings["folder"]))))
    return 0
