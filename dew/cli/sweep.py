"""`dew sweep`: train one run for each point of a space, and name the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dew.cli.command import Command, Option, Settings
from dew.cli.config_file import read_config
from dew.cli.run_config import (
    OPTIONS,
    configured,
    first_process_tells,
    pairs,
    prepare,
    shown_as,
    stopping,
    yaml_of,
)
from dew.errors import InputRefused, shown

if TYPE_CHECKING:
    from dew.config import RunConfig
    from dew.config.sweep import Trial

SEARCHES = ("grid", "optuna", "random")
LARGEST_GRID = 1000
LEDGER = "ledger.json"

COMMAND = Command(
    "sweep",
    "train one run for each point of a space; the same command goes on",
    (
        *OPTIONS,
        Option(
            "space",
            "pairs",
            (),
            "what to vary: optim.learning_rate=[1e-3,3e-4] for each path, or a YAML file of them, "
            "below the name of a search or not",
            required=True,
        ),
        Option("search", "text", None, "random unless the space file names one", choices=SEARCHES),
        Option(
            "trials", "integer", None, "how many points; by default a grid's whole product", low=1
        ),
        Option(
            "metric", "text", "perplexity", "a name in dew.metrics, scored on the held-out data"
        ),
        Option(
            "direction",
            "text",
            "minimize",
            "which score is better",
            choices=("minimize", "maximize"),
        ),
        Option(
            "ledger",
            "text",
            None,
            f"the file that remembers; by default {LEDGER} in the sweep's folder",
        ),
    ),
    run="dew.cli.sweep:run",
)


def run(settings: Settings) -> int:
    """Train the trials, print them and the best, and return 0.

    Raises:
        InputRefused: a configuration, space or ledger that cannot be used.
        SweepFailed: trials that failed, once the others are trained.
    """
    config = configured(settings)
    search, space = space_of(settings["space"], settings["search"])
    trials = trials_of(search, space, settings["trials"])
    if settings["dry_run"]:
        print(f"{yaml_of(config)}\n# {trials} trials of a {search} search over {space}")
        return 0
    from dew.config.recipe import folder_of
    from dew.config.sweep import SweepFailed, sweep
    from dew.tracking import LocalTracker

    folder = folder_of(config)
    prepare(settings, config.trainer.checkpoint_dir)
    with first_process_tells(), stopping(settings, folder):
        print(yaml_of(config), flush=True)
        train = _trial(config, settings)
        with LocalTracker(folder / "tracking") as tracker:
            try:
                found = sweep(
                    config,
                    space,
                    train=train,
                    trials=trials,
                    ledger=Path(settings["ledger"] or folder / LEDGER),
                    tracker=tracker,
                    search=_search(search, settings["direction"]),
                )
            except SweepFailed as error:
                _tell(error.finished, settings)
                raise
        _tell(found, settings)
    return 0


def space_of(words: Sequence[str], search: str | None) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the search, and the space that flags or a file describe.

    Raises:
        InputRefused: a file that names two searches or another one than the flag.
    """
    if len(words) != 1 or "=" in words[0]:
        return search or "random", pairs(words, "space")
    found = read_config(words[0])
    named = [name for name in found if name in SEARCHES]
    if not named:
        return search or "random", found
    if len(found) != 1 or search not in (None, named[0]) or not isinstance(found[named[0]], dict):
        raise InputRefused(
            f"{words[0]}: expected one search with its paths; found {shown(sorted(found))}"
            + (f" and --search {search}" if search else "")
        )
    return named[0], found[named[0]]


def trials_of(search: str, space: Mapping[str, Any], asked: int | None) -> int:
    """Return how many points to train: as asked, or a grid's whole product.

    Raises:
        InputRefused: nothing was asked and there is no grid, or one of more than 1000 points.
    """
    from dew.config.search import checked_space, grid_size

    size = grid_size(checked_space(space))
    if asked is not None:
        return asked
    if search != "grid":
        raise InputRefused(f"trials is missing: a {search} search needs --trials")
    if size > LARGEST_GRID:
        raise InputRefused(
            f"space: the grid has {size} points; without --trials at most {LARGEST_GRID} are "
            f"trained. Give --trials {size} to mean it, or fewer values."
        )
    return size


def _search(name: str, direction: Any) -> Any:
    from dew.config.search import grid_search, optuna_search, random_search

    return {
        "grid": grid_search,
        "random": random_search,
        "optuna": partial(optuna_search, direction=direction),
    }[name]


def _trial(config: RunConfig, settings: Settings) -> Any:
    """Return what trains one trial and scores it on its held-out data."""
    import jax

    from dew.evaluation import evaluate
    from dew.registry import metrics

    metric = metrics[settings["metric"]]()
    if config.open_data().val is None:
        raise InputRefused("data.val is missing: a sweep scores its trials on held-out data")

    def trial(run: RunConfig) -> float:
        objective, data = run.build_objective(), run.open_data()
        state = run.train(objective, data, **shown_as(settings))
        assert data.val is not None
        event = evaluate(
            objective,
            state.params,
            data.val,
            key=jax.random.key(run.trainer.seed),
            metrics=(metric,),
            step=int(state.step),
            mesh=run.mesh,
        )
        return event.scores[f"val/{metric.name}"]

    return trial


def _tell(trials: Sequence[Trial], settings: Settings) -> None:
    for trial in trials:
        point = " ".join(f"{path}={value}" for path, value in trial.overrides.items())
        print(f"trial {trial.number}  val/{settings['metric']} {trial.value:.6g}  {point}")
    scored = [trial for trial in trials if not math.isnan(trial.value)]
    if scored:
        better = min if settings["direction"] == "minimize" else max
        best = better(scored, key=lambda trial: trial.value)
        point = " ".join(f"--set {path}={value}" for path, value in best.overrides.items())
        print(f"best: trial {best.number}, {best.value:.6g}: {point}")
