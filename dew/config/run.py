"""`RunConfig`: everything that makes a run, as values that can be written, read and changed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from dew.config.data_part import data_from_dict, data_to_dict
from dew.config.parts import (
    ModelConfig,
    ObjectiveConfig,
    OptimConfig,
    Part,
    TrainerConfig,
    known_fields,
    plain_section,
    section,
)
from dew.config.values import ConfigRefused, arguments
from dew.errors import InputRefused, nearest, shown
from dew.placement import MeshSpec

if TYPE_CHECKING:
    from dew.data import Dataset
    from dew.objectives.base import Objective
    from dew.tracking import Tracker
    from dew.training import TrainState

BESIDE = ("versions", "summary")
"""What a run.json holds beside its configuration."""


@dataclass(frozen=True)
class RunConfig:
    """The resolved configuration of a run.

    Args:
        model: which model, with which sizes.
        data: settings of a registered dataset, such as `datasets["token_windows"](seq_len=8)`;
            None where a dataset is handed to `train`.
        optim: the optimizer and its rate.
        trainer: steps, reports, checkpoints and the run's name.
        objective: which loss; None where one is handed to `train`.
        mesh: how many devices each kind of parallelism takes.

    Raises:
        ConfigRefused: a section of another class.
    """

    model: ModelConfig
    data: Any = None
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    objective: ObjectiveConfig | None = None
    mesh: MeshSpec = field(default_factory=MeshSpec)

    def __post_init__(self) -> None:
        """Refuse a section that is something else."""
        wanted = {**_SECTIONS, "mesh": MeshSpec}
        problems = [
            f"{name} is {shown(getattr(self, name))}; expected a {cls.__name__}"
            for name, cls in wanted.items()
            if not isinstance(getattr(self, name), cls)
            and not (name == "objective" and self.objective is None)
        ]
        if problems:
            raise ConfigRefused(problems)
        data_to_dict(self.data)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration in JSON's types; `from_dict` undoes it exactly."""
        return {
            "model": self.model.to_dict(),
            "objective": None if self.objective is None else self.objective.to_dict(),
            "data": data_to_dict(self.data),
            "optim": self.optim.to_dict(),
            "trainer": self.trainer.to_dict(),
            "mesh": plain_section(self.mesh),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        """Return the configuration that a mapping holds; what is left out takes its default.

        Args:
            values: sections by name. `versions` and `summary`, which a run.json has too, are
                passed over.

        Raises:
            ConfigRefused: every unknown, missing and unfit setting, in one message.
        """
        problems: list[str] = []
        known = [each.name for each in fields(cls)]
        for name in values:
            if name not in known and name not in BESIDE:
                problems.append(f"{shown(name)[1:-1]}: no such section{_near_section(name, known)}")
        if "model" not in values:
            problems.append("model is missing: give its name and kwargs")
        read = {
            name: section(part, values[name], name, problems)
            for name, part in _SECTIONS.items()
            if values.get(name) is not None
        }
        if "data" in values:
            read["data"] = data_from_dict(values["data"], problems)
        if values.get("mesh") is not None:
            read["mesh"] = _mesh(values["mesh"], problems)
        if problems:
            raise ConfigRefused(problems)
        return cls(**read)

    def override(self, changes: Mapping[str, Any]) -> RunConfig:
        """Return the configuration with other values at dotted paths.

        Args:
            changes: such as `{"optim.learning_rate": 0.01, "model.kwargs.num_layers": 2}`. A
                path may name a whole section, and an argument of the model that is not set yet.

        Raises:
            ConfigRefused: a path that the configuration does not declare, with the nearest ones,
                or a value that does not fit.
        """
        values, problems = copy.deepcopy(self.to_dict()), []
        for path, value in changes.items():
            if not _put(values, str(path).split("."), value):
                near = nearest(str(path), self.paths())
                problems.append(f"{shown(path)[1:-1]}: no such path in the configuration{near}")
        if problems:
            raise ConfigRefused(problems)
        return RunConfig.from_dict(values)

    def paths(self) -> list[str]:
        """Return every dotted path that can be overridden."""
        paths = _flat(self.to_dict(), "")
        for name, part in (("model", self.model), ("objective", self.objective)):
            if part is not None:
                paths += [f"{name}.kwargs.{argument}" for argument in part.declared()]
        return sorted(set(paths))

    def build_objective(self) -> Objective:
        """Return the objective over the model, both as configured.

        One that takes `seq_len` has the data's, and one that takes `updates` the trainer's, where
        its kwargs say nothing else.

        Raises:
            InputRefused: the configuration names no objective, or one that does not fit.
        """
        if self.objective is None:
            raise InputRefused("objective is missing: give its name, such as lm, and its kwargs")
        known = {"updates": self.trainer.updates}
        if hasattr(self.data, "seq_len"):
            known["seq_len"] = self.data.seq_len
        return self.objective.build(self.model.build(), **known)

    def open_data(self) -> Dataset:
        """Return the dataset as configured.

        Raises:
            InputRefused: the configuration names no data, or files that cannot be used.
        """
        if self.data is None:
            raise InputRefused("data is missing: give the name of a dataset and its files")
        vocabulary = self.model.kwargs.get("vocab_size")
        return self.data.open(batch=self.trainer.batch_size, vocab_size=vocabulary)

    def train(
        self,
        objective: Objective,
        data: Dataset,
        *,
        name: str | None = None,
        tracker: Tracker | None = None,
        **fit: Any,
    ) -> TrainState:
        """Train in the folder `trainer.checkpoint_dir`/`name`, or go on there.

        The folder gets the checkpoints, `run.json` (this configuration and the versions of the
        packages) and `tracking/` (a `LocalTracker`).

        Args:
            objective: what to train.
            data: what on; its batch is `trainer.batch_size`.
            name: of the run; by default the trainer's.
            tracker: told too, and borrowed.
            **fit: handed to `Trainer.fit`: `variables`, `on_report`, `progress`, or metrics in
                the place of those that are named.

        Raises:
            InputRefused: no name, another batch, or the folder of a run of another configuration.
            NonFinite, CheckpointFailed, Interrupted: as `Trainer.fit`.
        """
        from dew.config.recipe import train

        return train(self, objective, data, name=name, tracker=tracker, fit=fit)


_SECTIONS: dict[str, type[Part]] = {
    "model": ModelConfig,
    "objective": ObjectiveConfig,
    "optim": OptimConfig,
    "trainer": TrainerConfig,
}


def _mesh(value: Any, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        problems.append(f"mesh is {shown(value)}; expected a mapping of axes")
        return None
    before = len(problems)
    given = arguments(value, known_fields(MeshSpec), "mesh", problems)
    if len(problems) > before:
        return None
    try:
        return MeshSpec(**given)
    except InputRefused as error:
        problems.append(str(error))
        return None


def _near_section(name: Any, known: list[str]) -> str:
    """Return the nearest section, or the settings elsewhere that are called so."""
    settings = [f"{part}.{key}" for part, cls in _SECTIONS.items() for key in known_fields(cls)]
    last = [path for path in settings if path.rpartition(".")[2] == name]
    return f"; did you mean {last[0]!r}?" if last else nearest(str(name), [*known, *settings])


def _put(values: dict[str, Any], path: list[str], value: Any) -> bool:
    """Put a value at a path; False where there is no such place."""
    at = values
    for depth, name in enumerate(path[:-1]):
        inside = "kwargs" in path[1:depth]
        if not isinstance(at.get(name), dict):
            if not inside:
                return False
            at[name] = {}
        at = at[name]
    # What a model may be given is known to its class alone, which `from_dict` asks.
    if path[-1] not in at and "kwargs" not in path[1:-1]:
        return False
    at[path[-1]] = value
    return True


def _flat(values: Mapping[str, Any], prefix: str) -> list[str]:
    paths = []
    for name, value in values.items():
        paths.append(prefix + name)
        if isinstance(value, Mapping):
            paths += _flat(value, f"{prefix}{name}.")
    return paths
