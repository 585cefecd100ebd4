"""How a sweep chooses its points: at random, along a grid, or as Optuna's sampler asks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from dew.config.ledger import Trial
from dew.config.values import plain
from dew.errors import InputRefused, shown

Space = Mapping[str, Sequence[Any]]
"""Dotted path into the configuration to the values a trial can take there."""


class Search(Protocol):
    """Chooses the point of a trial, the same one whenever it is asked with the same arguments."""

    def __call__(self, space: Space, number: int, trials: Sequence[Trial]) -> dict[str, Any] | None:
        """Return the point of trial `number` given those that ended, or None for no more."""
        ...


def checked_space(space: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the space in a configuration's types.

    Raises:
        InputRefused: it is empty, or a path has no list of values.
    """
    if not isinstance(space, Mapping) or not space:
        raise InputRefused(
            f"space is {shown(space)}; expected dotted paths with the values each can take"
        )
    for path, values in space.items():
        if isinstance(values, str | Mapping) or not np.iterable(values) or not len(list(values)):
            raise InputRefused(f"space: {path} is {shown(values)}; expected a list of values")
    return {str(path): plain(tuple(values), str(path)) for path, values in space.items()}


def grid_size(space: Space) -> int:
    """Return the number of points of the cartesian product."""
    return math.prod(len(values) for values in space.values())


def random_search(
    space: Space, number: int, trials: Sequence[Trial] = (), *, seed: int = 0
) -> dict[str, Any]:
    """Draw each path by itself: from its name, the trial's number and `seed` alone.

    Another path in the space moves no draw of this one. `functools.partial` sets the seed.
    """
    del trials
    point = {}
    for path, values in space.items():
        generator = np.random.default_rng([seed, number, *path.encode()])
        point[path] = values[int(generator.integers(len(values)))]
    return point


def grid_search(space: Space, number: int, trials: Sequence[Trial] = ()) -> dict[str, Any] | None:
    """Walk the cartesian product in order, the last path fastest; None past its end.

    The product is counted, never built.
    """
    del trials
    if number >= grid_size(space):
        return None
    point = {}
    for path, values in reversed(list(space.items())):
        number, place = divmod(number, len(values))
        point[path] = values[place]
    return {path: point[path] for path in space}


def optuna_search(
    space: Space,
    number: int,
    trials: Sequence[Trial] = (),
    *,
    direction: Literal["minimize", "maximize"] = "minimize",
    seed: int = 0,
) -> dict[str, Any]:
    """Ask Optuna's TPE sampler for the next point, once it was told all ended trials.

    Numbers are handed to it in their order, so that it can tell near from far; other values as
    categories. `functools.partial` sets the direction ("minimize" or "maximize") and the seed.

    Raises:
        ImportError: optuna is absent; the extra `hpo` has it.

    Source: Optuna 5.0's `Study.add_trial` and `Study.ask`.
    """
    try:
        import optuna
    except ImportError as error:
        raise ImportError('optuna_search needs optuna: pip install "dew[hpo]"') from error

    choices = {path: _ordered(values) for path, values in space.items()}
    distributions: dict[str, Any] = {
        path: optuna.distributions.IntDistribution(0, len(values) - 1)
        if _numbers(values)
        else optuna.distributions.CategoricalDistribution(range(len(values)))
        for path, values in choices.items()
    }
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        sampler = optuna.samplers.TPESampler(seed=_mixed(seed, number))
        study = optuna.create_study(direction=direction, sampler=sampler)
        study.add_trials([_told(trial, choices, distributions) for trial in trials])
        asked = study.ask(distributions).params
    finally:
        optuna.logging.set_verbosity(before)
    return {path: values[asked[path]] for path, values in choices.items()}


def _told(trial: Trial, choices: Space, distributions: dict[str, Any]) -> Any:
    """Return a trial as Optuna knows one; without a score it failed."""
    from optuna.trial import TrialState, create_trial

    scored = not math.isnan(trial.value)
    return create_trial(
        params={path: _place(values, trial.overrides[path]) for path, values in choices.items()},
        distributions=distributions,
        value=trial.value if scored else None,
        state=TrialState.COMPLETE if scored else TrialState.FAIL,
    )


def _mixed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _ordered(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(sorted(values)) if _numbers(values) else tuple(values)


def _place(values: Sequence[Any], value: Any) -> int:
    """Return which of the values it is; a ledger's lists are the space's tuples."""
    wanted = plain(value, "trial")
    return next(n for n, each in enumerate(values) if each == wanted)
