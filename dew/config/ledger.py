"""The ledger of a sweep: one file that knows each trial's point and what became of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dew.config.durable import write_json
from dew.config.values import to_json
from dew.errors import InputRefused, listed, shown

BEGUN, FINISHED, FAILED = "begun", "finished", "failed"


@dataclass(frozen=True)
class Trial:
    """One point of a space, and what training there came to.

    Attributes:
        number: of the trial, from 0.
        overrides: dotted path to value: the point.
        value: the score; NaN where there is none.
        status: "begun", "finished" or "failed".
        error: what a failed trial raised.
    """

    number: int
    overrides: Mapping[str, Any]
    value: float = math.nan
    status: str = BEGUN
    error: str = ""


class Ledger:
    """The trials of one sweep, in a file that is replaced whole at every change.

    Args:
        path: of the file; made at the first trial.
        space: dotted path to the values a trial can take.
        config: what the points are laid over, as `RunConfig.to_dict` gives it.

    Raises:
        InputRefused: the file is no ledger, or one of another space or configuration.
    """

    def __init__(self, path: Path, space: Mapping[str, Any], config: Mapping[str, Any]):
        self.path = path
        self._head = {"space": to_json(space), "config": config}
        self._trials: dict[int, Trial] = {}
        if path.exists():
            self._read()

    @property
    def finished(self) -> tuple[Trial, ...]:
        """The finished trials in the order of their numbers."""
        return self._of(FINISHED)

    @property
    def failed(self) -> tuple[Trial, ...]:
        """The failed trials in the order of their numbers."""
        return self._of(FAILED)

    def __getitem__(self, number: int) -> Trial | None:
        """Return a trial, or None where it has not begun."""
        return self._trials.get(number)

    def begin(self, number: int, overrides: Mapping[str, Any]) -> None:
        """Write a trial's point down, so that a run that goes on trains at the same one."""
        self._put(Trial(number, dict(overrides)))

    def finish(self, number: int, value: float) -> Trial:
        """Write a trial's score down; once this returns, no kill takes it back."""
        return self._put(replace(self._trials[number], value=value, status=FINISHED, error=""))

    def fail(self, number: int, error: str) -> Trial:
        """Write down what a trial raised."""
        return self._put(replace(self._trials[number], status=FAILED, error=error))

    def _of(self, status: str) -> tuple[Trial, ...]:
        numbers = sorted(self._trials)
        return tuple(self._trials[n] for n in numbers if self._trials[n].status == status)

    def _put(self, trial: Trial) -> Trial:
        trials = {**self._trials, trial.number: trial}
        rows = [_row(trials[number]) for number in sorted(trials)]
        write_json(self.path, {**self._head, "trials": rows})
        self._trials = trials
        return trial

    def _read(self) -> None:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            rows = [_trial(row) for row in found["trials"]]
            before = {name: found[name] for name in self._head}
            if any(set(trial.overrides) != set(found["space"]) for trial in rows):
                raise ValueError("a trial is not of the space")
        except OSError as error:
            raise InputRefused(f"ledger {self.path}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputRefused(
                f"{self.path} is no ledger of a sweep ({type(error).__name__}: {error}); name "
                "another file, or take this one away"
            ) from error
        differing = [
            f"{what}: was {shown(was, 80)}, now {shown(now, 80)}"
            for name, value in self._head.items()
            for what, was, now in _differences(name, before[name], value)
        ]
        if differing:
            raise InputRefused(
                listed(
                    f"{self.path} is the ledger of another sweep; name another file, or give "
                    "these as they were:",
                    differing,
                )
            )
        self._trials = {trial.number: trial for trial in rows}


def _row(trial: Trial) -> dict[str, Any]:
    value: Any = trial.value
    if not math.isfinite(value):
        value = "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return {
        "number": trial.number,
        "overrides": to_json(trial.overrides),
        "status": trial.status,
        **({"value": value} if trial.status == FINISHED else {}),
        **({"error": trial.error} if trial.status == FAILED else {}),
    }


def _trial(row: Mapping[str, Any]) -> Trial:
    number, overrides, status = row["number"], row["overrides"], row["status"]
    if type(number) is not int or not isinstance(overrides, dict):
        raise ValueError("a trial has a whole number and overrides")
    if status not in (BEGUN, FINISHED, FAILED):
        raise ValueError(f"a trial is {shown(status)}")
    value = float(row["value"]) if status == FINISHED else math.nan
    return Trial(number, overrides, value, status, str(row.get("error", "")))


def _differences(path: str, was: Any, now: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        return [
            each
            for name in sorted({*was, *now})
            for each in _differences(f"{path}[{name!r}]", was.get(name), now.get(name))
        ]
    # 1, 1.0 and True are equal in Python and three values in a configuration.
    same = json.dumps(was, sort_keys=True) == json.dumps(now, sort_keys=True)
    return [] if same else [(path, was, now)]
