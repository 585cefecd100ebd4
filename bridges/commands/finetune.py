"""`dew finetune`: train a Hugging Face checkpoint on text and write it back."""

from __future__ import annotations

from bridges.finetune.settings import FORMERS, OPTIONS
from dew.cli.command import Command, Settings

COMMAND = Command(
    "finetune",
    "train a model or a LoRA adapter on text; the same command goes on where it stopped",
    OPTIONS,
    run="bridges.commands.finetune:run",
    formers=FORMERS,
)


def run(settings: Settings) -> int:
    """Run it and return the exit status."""
    from bridges.finetune.run import finetune

    return finetune(settings)
