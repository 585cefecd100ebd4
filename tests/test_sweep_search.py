"""Searches choose points that depend on the trial's number and what came before, on no more."""

import itertools
import math
from functools import partial

import pytest

from dew.config.ledger import FAILED, FINISHED, Trial
from dew.config.search import (
    checked_space,
    grid_search,
    grid_size,
    optuna_search,
    random_search,
)
from dew.errors import InputRefused

SPACE = {"a": (1, 2, 3), "b": ("x", "y"), "c": (0.1, 0.01)}


def test_the_grid_is_the_cartesian_product_in_order():
    # The oracle is itertools.
    points = [grid_search(SPACE, number) for number in range(12)]
    assert [tuple(point.values()) for point in points] == list(itertools.product(*SPACE.values()))
    assert list(points[0]) == ["a", "b", "c"]
    assert grid_search(SPACE, 12) is None


def test_bp090_a_grid_of_a_thousand_million_points_is_counted_and_never_built():
    space = {f"p{n}": tuple(range(10)) for n in range(9)}
    assert grid_size(space) == 10**9
    assert list(grid_search(space, 123_456_789).values()) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_random_draws_depend_on_the_number_alone():
    trials = [Trial(n, random_search(SPACE, n), 1.0, FINISHED) for n in range(5)]
    assert [random_search(SPACE, n) for n in range(5)] == [t.overrides for t in trials]
    assert random_search(SPACE, 5, trials) == random_search(SPACE, 5)
    assert [random_search(SPACE, n, seed=1) for n in range(9)] != [
        random_search(SPACE, n) for n in range(9)
    ]


def test_each_field_is_drawn_by_itself():
    # Another path in the space moves no draw of the others.
    wider = {"new": tuple(range(50)), **SPACE}
    for number in range(20):
        point = random_search(wider, number)
        assert random_search(SPACE, number) == {path: point[path] for path in SPACE}


def test_random_draws_are_even_and_two_fields_are_not_one():
    # Closed form: over N draws a share of p lies within 4 sqrt(p (1 - p) / N) of it.
    points = [random_search(SPACE, number) for number in range(2000)]
    for want, share in (({"a": 2}, 1 / 3), ({"b": "x"}, 1 / 2), ({"a": 1, "c": 0.1}, 1 / 6)):
        found = sum(point.items() >= want.items() for point in points) / len(points)
        assert abs(found - share) < 4 * math.sqrt(share * (1 - share) / len(points))


def finished(search, score, count, space=SPACE):
    trials = []
    for number in range(count):
        point = search(space, number, trials)
        trials.append(Trial(number, point, score(point), FINISHED))
    return trials


def test_optuna_asks_for_points_of_the_space_and_repeats_itself():
    trials = finished(optuna_search, lambda point: float(point["a"]), 6)
    for trial in trials:
        assert all(trial.overrides[path] in values for path, values in SPACE.items())
        assert list(trial.overrides) == list(SPACE)
    again = [optuna_search(SPACE, n, trials[:n]) for n in range(6)]
    assert again == [trial.overrides for trial in trials]


@pytest.mark.parametrize(("direction", "sign"), [("minimize", 1), ("maximize", -1)])
def test_optuna_learns_from_the_trials_it_is_told(direction, sign):
    # A bowl over 40 numbers; a uniform search meets its lowest tenth with every tenth point.
    space = {"x": tuple(range(40))}
    search = partial(optuna_search, direction=direction)
    trials = finished(search, lambda point: sign * (point["x"] - 31) ** 2.0, 40, space)
    late = [abs(trial.overrides["x"] - 31) <= 2 for trial in trials[20:]]
    assert sum(late) >= 8


def test_optuna_is_told_of_trials_that_failed_diverged_or_came_back_from_json():
    space = {"list": ((1, 2), (3, 4)), "flag": (True, False), "number": (3, 1.5, 2)}
    trials = [
        Trial(0, {"list": [1, 2], "flag": True, "number": 3}, math.nan, FAILED, "Error: it"),
        Trial(1, {"list": [3, 4], "flag": False, "number": 1.5}, math.inf, FINISHED),
        Trial(2, {"list": [3, 4], "flag": False, "number": 2}, math.nan, FINISHED),
    ]
    point = optuna_search(space, 3, trials)
    assert all(point[path] in values for path, values in space.items())


def test_optuna_keeps_its_own_log_level():
    import optuna

    before = optuna.logging.get_verbosity()
    optuna_search(SPACE, 0)
    assert optuna.logging.get_verbosity() == before


@pytest.mark.parametrize("space", [{}, [], {"a": 1}, {"a": "xy"}, {"a": []}, {"a": {"b": 1}}, None])
def test_a_space_that_is_none_is_refused(space):
    with pytest.raises(InputRefused, match="space"):
        checked_space(space)
