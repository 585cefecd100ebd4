"""`dew inspect PATH`: what a checkpoint holds and what each library will read of it."""

from __future__ import annotations

from dew.cli.command import Command, Option, Settings

COMMAND = Command(
    "inspect",
    "say what a checkpoint holds and what transformers 4, 5 and vLLM will read",
    (
        Option(
            "model_name_or_path",
            "text",
            None,
            "a Hugging Face folder or a weight file",
            ("model", "path"),
            positional=True,
            required=True,
        ),
    ),
    run="bridges.commands.inspect:run",
)


def run(settings: Settings) -> int:
    """Print the report and return 0."""
    from bridges.inspection import inspect_checkpoint

    print(inspect_checkpoint(settings["model_name_or_path"]).text())
    return 0
