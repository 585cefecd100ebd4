"""The parts of a run's configuration: model, objective, optimizer, trainer."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dew.config.values import ConfigRefused, Parameter, arguments, built, parameters, plain, to_json
from dew.errors import InputRefused, UnknownName, shown
from dew.registry import Registry, metrics, models, objectives
from dew.training.optimizers import OPTIMIZERS, optimizer
from dew.training.schedules import SCHEDULES, learning_rate

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def setting(default: Any, *, low: float | None = None, choices: tuple[str, ...] = ()) -> Any:
    """Return a dataclass field with bounds that `Part` checks."""
    return field(default=default, metadata={"low": low, "choices": choices})


@dataclass(frozen=True)
class Part:
    """A section of a configuration: checked when it is built, and written as a mapping."""

    def __post_init__(self) -> None:
        """Hold every field to its annotation and its bounds; complain of all at once.

        Raises:
            ConfigRefused: what does not fit.
        """
        problems: list[str] = []
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, value in arguments(given, known_fields(type(self)), "", problems).items():
            object.__setattr__(self, name, value)
        if not problems:
            problems.extend(self._problems())
        if problems:
            raise ConfigRefused(problems)

    def to_dict(self) -> dict[str, Any]:
        """Return the section in JSON's types."""
        return {f.name: to_json(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def _problems(self) -> list[str]:
        """Return what is wrong with fields that are of the right types."""
        problems = []
        for each in dataclasses.fields(self):
            value, low = getattr(self, each.name), each.metadata.get("low")
            choices = each.metadata.get("choices")
            if low is not None and value is not None and value < low:
                problems.append(f"{each.name} is {value}; expected at least {low:g}")
            if choices and value not in choices:
                problems.append(
                    f"{each.name} is {shown(value)}; expected one of {', '.join(choices)}"
                )
        return problems


@functools.cache
def known_fields(cls: type) -> dict[str, Parameter]:
    """Return a section's settings by name."""
    hints = typing.get_type_hints(cls)
    return {
        f.name: Parameter(
            hints[f.name],
            f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING,
        )
        for f in dataclasses.fields(cls)
    }


@dataclass(frozen=True)
class _Named(Part):
    """A class of a registry, and what it is built with."""

    registry: ClassVar[Registry]

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cls(self) -> Any:
        """The class that `name` stands for."""
        return self.registry[self.name]

    def declared(self) -> dict[str, Parameter]:
        """Return the arguments that `kwargs` may hold, by name."""
        return parameters(self.cls)

    def _problems(self) -> list[str]:
        registry = self.registry
        if self.name not in registry:
            return [f"name: {_unknown(registry, self.name)}"]
        problems: list[str] = []
        checked = arguments(self.kwargs, self.declared(), "kwargs", problems)
        object.__setattr__(self, "kwargs", checked)
        return problems

    def _built(self, *given: Any, **more: Any) -> Any:
        known, home = self.declared(), self.cls.__module__
        kwargs = {name: built(v, known[name].hint, home) for name, v in self.kwargs.items()}
        kwargs |= {name: v for name, v in more.items() if name in known and name not in kwargs}
        try:
            return self.cls(*given, **kwargs)
        except TypeError as error:
            raise InputRefused(f"{self.name}: {error}; say it in kwargs") from error


@dataclass(frozen=True)
class ModelConfig(_Named):
    """A model by its name in `dew.models`.

    Args:
        name: in the registry.
        kwargs: its arguments, in JSON's types; a mapping stands for a dataclass such as `Rope`.

    Raises:
        ConfigRefused: an unknown name, or an argument the model does not take or not so.
    """

    registry: ClassVar[Registry] = models

    def build(self) -> Any:
        """Return the module."""
        return self._built()


@dataclass(frozen=True)
class ObjectiveConfig(_Named):
    """An objective by its name in `dew.registry.objectives`.

    Args:
        name: in the registry.
        kwargs: its arguments beside the model. A number may stand for a function that always
            gives it (`ema: {decay: 0.999}`), a text for a function of the objective's module.

    Raises:
        ConfigRefused: an unknown name, or an argument the objective does not take or not so.
    """

    registry: ClassVar[Registry] = objectives

    def declared(self) -> dict[str, Parameter]:
        """Return the arguments beside the model, which is the first."""
        return dict(list(super().declared().items())[1:])

    def build(self, model: Any, **defaults: Any) -> Any:
        """Return the objective over `model`.

        Args:
            model: its first argument.
            **defaults: what to give it where it takes an argument so called and `kwargs` has none.

        Raises:
            InputRefused: an argument is missing, or the objective refuses them.
        """
        return self._built(model, **defaults)


@dataclass(frozen=True)
class OptimConfig(Part):
    """The optimizer and its learning rate.

    Args:
        optimizer: one of `dew.training.optimizers.OPTIMIZERS`.
        learning_rate: the highest rate.
        schedule: one of `dew.training.schedules.SCHEDULES`, transformers' names.
        warmup_steps: updates of rising rate; below 1 a share of all updates.
        weight_decay: none on biases and norms; adam has none at all.
        beta1, beta2: decay of the moments, below 1.
        epsilon: added to the root of the second moment.
        momentum: of sgd.
        max_grad_norm: global norm that gradients are scaled down to; 0 leaves them.
        max_grad_value: largest size of a gradient's element; 0 leaves them.
        layer_decay: each layer's rate over that of the next one above it; 1 is the same for all.
        optimizer_kwargs: further arguments of the optimizer by torch's names, as `nesterov`.
        schedule_kwargs: arguments of the schedule by transformers' names, as `num_cycles`.

    Raises:
        ConfigRefused: values that do not fit.
    """

    optimizer: str = setting("adamw", choices=OPTIMIZERS)
    learning_rate: float = setting(1e-3, low=0)
    schedule: str = setting("constant", choices=SCHEDULES)
    warmup_steps: float = setting(0.0, low=0)
    weight_decay: float = setting(0.0, low=0)
    beta1: float = setting(0.9, low=0)
    beta2: float = setting(0.999, low=0)
    epsilon: float = setting(1e-8, low=0)
    momentum: float = setting(0.0, low=0)
    max_grad_norm: float = setting(0.0, low=0)
    max_grad_value: float = setting(0.0, low=0)
    layer_decay: float = setting(1.0, low=0)
    optimizer_kwargs: Mapping[str, Any] = field(default_factory=dict)
    schedule_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def _problems(self) -> list[str]:
        problems = super()._problems()
        for name in ("beta1", "beta2", "momentum"):
            if getattr(self, name) >= 1:
                problems.append(f"{name} is {getattr(self, name)}; expected less than 1")
        if self.optimizer == "adam" and self.weight_decay:
            problems.append(f"weight_decay is {self.weight_decay} and adam has none; choose adamw")
        if self.optimizer != "sgd" and self.momentum:
            problems.append(f"momentum is {self.momentum} and {self.optimizer} has none; sgd has")
        if self.schedule == "constant" and self.warmup_steps:
            problems.append(
                f"warmup_steps is {self.warmup_steps:g} and schedule constant has none; choose "
                "constant_with_warmup"
            )
        if not 0 < self.layer_decay <= 1:
            problems.append(f"layer_decay is {self.layer_decay}; expected above 0 and at most 1")
        if not problems:
            try:
                self.build(1)
            except InputRefused as error:
                problems.append(str(error))
        return problems

    def build(self, updates: int) -> Any:
        """Return the optax transformation of a run of so many updates."""
        rate = learning_rate(
            self.learning_rate, self.schedule, self.warmup_steps, updates, self.schedule_kwargs
        )
        return optimizer(
            self.optimizer,
            rate,
            weight_decay=self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            momentum=self.momentum,
            max_grad_norm=self.max_grad_norm,
            max_grad_value=self.max_grad_value,
            layer_decay=self.layer_decay,
            arguments=self.optimizer_kwargs,
        )


@dataclass(frozen=True)
class TrainerConfig(Part):
    """How long a run trains, and where and when it reports.

    Args:
        name: of the run, its folder below `checkpoint_dir`: parts of letters, digits, `._-`,
            parted by `/`.
        checkpoint_dir: where runs lie.
        steps: microbatches in all.
        batch_size: rows of a microbatch, over all devices.
        accumulation: microbatches an update.
        log_every: microbatches between two reports.
        eval_every: microbatches between two evaluations, or None for none.
        checkpoint_every: microbatches between two saves; None saves at the end only.
        keep: how many of the latest checkpoints stay.
        metrics: names in `dew.metrics` that an evaluation scores.
        preview: whether an evaluation draws something to look at.
        seed: of every draw.

    Raises:
        ConfigRefused: values that do not fit.
    """

    name: str | None = None
    checkpoint_dir: str = "runs"
    steps: int = setting(1000, low=0)
    batch_size: int = setting(8, low=1)
    accumulation: int = setting(1, low=1)
    log_every: int = setting(100, low=1)
    eval_every: int | None = setting(None, low=1)
    checkpoint_every: int | None = setting(None, low=1)
    keep: int = setting(2, low=1)
    metrics: tuple[str, ...] = ()
    preview: bool = False
    seed: int = setting(0, low=0)

    @property
    def updates(self) -> int:
        """Optimizer updates in all; a last short window is one too."""
        return math.ceil(self.steps / self.accumulation)

    def _problems(self) -> list[str]:
        problems = super()._problems()
        if self.name is not None:
            problems.extend(name_problems(self.name))
        if "\x00" in self.checkpoint_dir or not self.checkpoint_dir:
            problems.append(f"checkpoint_dir is {shown(self.checkpoint_dir)}; expected a folder")
        if self.seed >= 2**63:
            problems.append(f"seed is {shown(self.seed, 40)}; expected less than 2**63")
        unknown = [name for name in self.metrics if name not in metrics]
        problems.extend(f"metrics: {_unknown(metrics, name)}" for name in unknown)
        return problems


def name_problems(name: str) -> list[str]:
    """Return what is wrong with the name of a run, or nothing."""
    segments = name.split("/")
    if len(segments) <= 4 and all(_SEGMENT.fullmatch(segment) for segment in segments):
        return []
    return [
        f"name is {shown(name)}; expected 1 to 100 letters, digits, '.', '_' or '-', not "
        "starting with '.' or '-'; up to four such parts with '/' between"
    ]


def section(cls: type[Part], value: Any, where: str, problems: list[str]) -> Any:
    """Return a section read from a mapping, or None with what is wrong in `problems`."""
    if not isinstance(value, Mapping):
        problems.append(f"{where} is {shown(value)}; expected a mapping of settings")
        return None
    found: list[str] = []
    known = known_fields(cls)
    given = arguments(value, known, "", found)
    missing = [name for name, each in known.items() if each.required and name not in value]
    found.extend(f"{name} is missing" for name in missing)
    if not missing:
        try:
            made = cls(**given)
        except ConfigRefused as error:
            found.extend(problem for problem in error.problems if problem not in found)
    problems.extend(f"{where}.{problem}" for problem in found)
    return None if found else made


def _unknown(registry: Registry, name: str) -> str:
    try:
        registry[name]
    except UnknownName as error:
        return str(error)
    return ""


def plain_section(value: Any) -> dict[str, Any]:
    """Return any dataclass of settings in JSON's types."""
    return to_json(plain(value, type(value).__name__))
