"""Which task a run teaches: the one that was named, else what the checkpoint is for."""

from __future__ import annotations

import sys

from bridges.finetune.task import Task, task_named
from dew.cli.command import Settings

DEFAULT = "causal-lm"
ENDINGS = {
    "ForSequenceClassification": "text-classification",
}
"""The ending of an architecture's name to the task that it does."""


def task_of(settings: Settings) -> Task:
    """Return the task of the settings, and say in one line where it was guessed.

    Raises:
        UnknownName: there is none of that name.
        InputRefused: a source that cannot be found, or whose config is no JSON.
    """
    if settings["task"]:
        return task_named(settings["task"])
    from bridges.finetune.source_config import source_config

    config = source_config(settings)
    named = config.get("architectures")
    names = [str(name) for name in named] if isinstance(named, list) else []
    for ending, task in ENDINGS.items():
        if any(name.endswith(ending) for name in names):
            print(f"task: {task}, since the checkpoint is a {names[0]}", file=sys.stderr)
            return task_named(task)
    return task_named(DEFAULT)
