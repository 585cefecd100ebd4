"""What completions are worth: rewards by name, from a file that was named, or from Python."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from bridges.finetune.answer_rewards import ANSWERS, accuracy, matching, think_format
from dew.artifacts import TextSamples
from dew.cli.command import Settings
from dew.errors import InputRefused, UnknownName, nearest, shown

OWN = ("accuracy", "think_format", "regex")
SPELLINGS = {"think_format_reward": "think_format"}
"""trl's name of a reward that is the same here."""
KEPT_BACK = ("prompt", "completion", "prompts", "completions", "completion_ids", "prompt_ids")
"""Columns that no reward is given under their own names."""


@dataclass(frozen=True)
class WeightedRewards:
    """Rewards that add up, called as trl calls them.

    Args:
        functions: `function(prompts=, completions=, completion_ids=, **columns)` by name, each
            giving a number a completion, or None where it cannot tell.
        weights: what each counts.
    """

    functions: Mapping[str, Callable[..., Any]]
    weights: tuple[float, ...]

    def __call__(self, **given: Any) -> list[float | None]:
        """Return the weighted sum of each completion, None where no reward can tell.

        Raises:
            InputRefused: a reward that gives something else than a number or None for each.
        """
        count = len(given["completions"])
        table = [_numbers(name, each(**given), count) for name, each in self.functions.items()]
        weighed = np.array(table, np.float64) * np.array(self.weights)[:, None]
        known = ~np.isnan(weighed)
        sums = np.where(known, weighed, 0.0).sum(axis=0)
        told = np.asarray(known.any(axis=0))
        return [value if tells else None for value, tells in zip(sums.tolist(), told, strict=True)]


@dataclass(frozen=True)
class TableReward:
    """The reward of completions of a table's prompts, as the rollouts call it.

    Args:
        rewards: what scores.
        table: a `RowTable` with `prompt`, texts or messages, and the columns that rewards read.
    """

    rewards: WeightedRewards
    table: Any

    def __call__(
        self,
        *,
        prompts: Any,
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        record: Sequence[int],
    ) -> list[float | None]:
        """Return the rewards of completions.

        Args:
            prompts: as the model read them; the table's own are given on.
            completions: texts. Of prompts that are messages a reward gets them as messages.
            completion_ids: the tokens of each.
            record: the row of the table that each is of.
        """
        del prompts
        asked = [self.table["prompt"][row] for row in record]
        told = [
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for prompt, text in zip(asked, completions, strict=True)
        ]
        columns = {
            name: [values[row] for row in record]
            for name, values in self.table.fields.items()
            if name not in KEPT_BACK
        }
        return self.rewards(
            prompts=asked, completions=told, completion_ids=completion_ids, **columns
        )


@dataclass(frozen=True)
class MeanReward:
    """The mean reward of one completion a held-out prompt.

    Args:
        reward: of the held-out table.
        decode: ids to text, special tokens left out.
        ends: ids that end a completion.
    """

    reward: TableReward
    decode: Callable[[Sequence[int]], str]
    ends: tuple[int, ...]
    name: str = "reward"
    reads: type = TextSamples

    def __call__(self, scored: TextSamples, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the sum of the rewards and how many there are, float64 [2]."""
        kept = np.asarray(batch["weights"]) > 0
        ids = [self._ended(row) for row in np.asarray(scored.tokens)[kept].tolist()]
        record = np.asarray(batch["record"])[kept].tolist()
        if not record:
            return np.zeros(2)
        rewards = self.reward(
            prompts=None,
            completions=[self.decode(row) for row in ids],
            completion_ids=ids,
            record=record,
        )
        known = [value for value in rewards if value is not None]
        return np.array([sum(known), len(known)], np.float64)

    def merge(self, total: np.ndarray, part: np.ndarray) -> np.ndarray:
        """Return both batches' sums."""
        return total + part

    def finalize(self, total: np.ndarray) -> float:
        """Return the mean.

        Raises:
            ValueError: no completion could be scored.
        """
        if not total[1]:
            raise ValueError("reward: no completion of this pass could be scored")
        return float(total[0] / total[1])

    def _ended(self, row: list[int]) -> list[int]:
        stops = [place for place, token in enumerate(row) if token in self.ends]
        return row[: stops[0] + 1] if stops else row


def rewards_of(settings: Settings, columns: Sequence[str]) -> WeightedRewards:
    """Return the rewards that the settings name.

    Args:
        settings: with `reward`, `reward_weights` and `reward_pattern`.
        columns: of the data.

    Raises:
        InputRefused: none, weights that do not fit, a function that cannot be loaded, a column
            that a reward needs and that is not there.
        UnknownName: a reward of no known name.
    """
    asked: tuple[str, ...] = settings["reward"]
    names = [SPELLINGS.get(name, name) for name in asked]
    if not names:
        raise InputRefused(
            f"grpo needs a reward: give --reward with one of {', '.join(OWN)}, or file.py:function"
        )
    if len(set(names)) != len(names):
        raise InputRefused(f"reward: {', '.join(names)}: one is named twice")
    if "accuracy" in names and not set(ANSWERS) & set(columns):
        there = ", ".join(shown(name, 40) for name in list(columns)[:12])
        raise InputRefused(
            f"reward accuracy reads the column {' or '.join(ANSWERS)}; there is {there}"
        )
    functions = {name: _function(name, settings) for name in names}
    return WeightedRewards(functions, _weights(settings["reward_weights"], len(names)))


def _function(name: str, settings: Settings) -> Callable[..., Any]:
    if name in settings.objects:
        return settings.objects[name]
    if name == "regex":
        return partial(_regex, pattern=_pattern(settings["reward_pattern"]))
    if name in OWN:
        return {"accuracy": accuracy, "think_format": think_format}[name]
    if ":" in name:
        return _loaded(name)
    raise UnknownName(
        f"reward {shown(name)} is not known{nearest(name, OWN)} Known: {', '.join(OWN)}; one of "
        "your own is named file.py:function or module:function"
    )


def _regex(completions: Sequence[Any], *, pattern: str, **columns: Any) -> list[float]:
    del columns
    return matching(completions, pattern)


def _pattern(pattern: str | None) -> str:
    if pattern is None:
        raise InputRefused("reward regex: give its regular expression with --reward_pattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise InputRefused(f"reward_pattern {shown(pattern)}: {error}") from None
    return pattern


def _loaded(name: str) -> Callable[..., Any]:
    """Return a function by its place; its module's code is run, which a line says."""
    place, _, attribute = name.rpartition(":")
    if place in ("__main__", "__mp_main__"):
        raise InputRefused(
            f"reward {shown(attribute)} was given from Python; call dew.finetune with it again, or "
            "name it as file.py:function"
        )
    print(f"reward: runs the code of {place}", file=sys.stderr)
    try:
        module = _file_module(place) if place.endswith(".py") else importlib.import_module(place)
        found = attrgetter(attribute)(module)
    except Exception as error:
        said = shown(str(error), 200)[1:-1]
        raise InputRefused(
            f"reward {shown(name)} cannot be loaded: {type(error).__name__}: {said}"
        ) from error
    if not callable(found):
        raise InputRefused(f"reward {shown(name)} is a {type(found).__name__}; expected a function")
    return found


def _file_module(place: str) -> Any:
    path = Path(place).expanduser()
    if not path.is_file():
        raise InputRefused(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputRefused(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles of the file look for it there.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _weights(given: Sequence[str], count: int) -> tuple[float, ...]:
    if not given:
        return (1.0,) * count
    try:
        found = tuple(float(text) for text in given)
    except ValueError:
        found = ()
    if len(found) != count or not all(map(math.isfinite, found)):
        raise InputRefused(
            f"reward_weights: {shown(list(given))}; expected {count} numbers, one a reward"
        )
    return found


def _numbers(name: str, given: Any, count: int) -> list[float]:
    """Return a reward's numbers, NaN for None."""
    try:
        found = [math.nan if value is None else float(value) for value in given]
    except (TypeError, ValueError):
        found = []
    if len(found) != count or any(map(math.isinf, found)):
        raise InputRefused(
            f"reward {shown(name)} gave {shown(given, 80)} for {count} completions; expected a "
            "list with a finite number or None for each"
        )
    return found
