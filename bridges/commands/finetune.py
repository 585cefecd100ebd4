"""`dew finetune`: train a Hugging Face checkpoint on text and write it back."""

from __future__ import annotations

import sys

from bridges.finetune.settings import FORMERS, OPTIONS
from dew.cli.command import Command, Settings

COMMAND = Command(
    "finetune",
    "train a model or a LoRA adapter on text; the same command goes on where it stopped",
    OPTIONS,
    run="bridges.commands.finetune:run",
    formers=FORMERS,
    translate="bridges.finetune.other_keys:translated",
)


def run(settings: Settings) -> int:
    """Run it and return the exit status.

    Raises:
        InputRefused: settings, model, data or folder that cannot be used.
    """
    from bridges.finetune.optimizer import optim_of
    from bridges.finetune.run import finetune
    from bridges.finetune.training_args import with_training_args

    merged = with_training_args(settings)
    for note in merged.notes[len(settings.notes) :]:
        print(note, file=sys.stderr)
    # An optimizer that cannot be built is refused before a model is read.
    optim_of(merged, max(1, merged["max_steps"]))
    return finetune(merged)
