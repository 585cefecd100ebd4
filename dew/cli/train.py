"""`dew train`: train what a YAML describes, from nothing or from its last checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.cli.command import Command, Settings
from dew.cli.run_config import (
    OPTIONS,
    configured,
    first_process_tells,
    prepare,
    shown_as,
    stopping,
    yaml_of,
)

COMMAND = Command(
    "train",
    "train the model, objective and data that a YAML names; the same command goes on",
    OPTIONS,
    run="dew.cli.train:run",
)


def run(settings: Settings) -> int:
    """Print the resolved configuration, train, and print what came of it; return 0.

    Raises:
        InputRefused: a configuration, data or folder that cannot be used.
    """
    config = configured(settings)
    if settings["dry_run"]:
        print(yaml_of(config))
        return 0
    from dew.config.recipe import folder_of

    folder = folder_of(config)
    prepare(settings, config.trainer.checkpoint_dir)
    with first_process_tells(), stopping(settings, folder):
        print(yaml_of(config), flush=True)
        data, objective = config.open_data(), config.build_objective()
        scores: dict[str, float] = {}

        def keep(scalars: Mapping[str, float], step: int) -> None:
            del step
            scores.update({n: v for n, v in scalars.items() if n.startswith("val/")})

        fit: dict[str, Any] = {"on_report": keep, **shown_as(settings)}
        state = config.train(objective, data, **fit)
        found = "".join(f"; {name} {value:.6g}" for name, value in scores.items())
        print(f"{folder}: {int(state.step)} steps, {int(state.updates)} updates{found}")
    return 0
