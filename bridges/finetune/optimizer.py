"""The optimizer of `dew finetune`, by Hugging Face's names and with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optax

from bridges.finetune.optimizer_names import OPTIMS
from dew.cli.command import Settings
from dew.errors import InputRefused, UnknownName, nearest, shown
from dew.training.optimizers import decayed, optimizer
from dew.training.schedules import learning_rate


@dataclass(frozen=True)
class Optim:
    """The numbers of an optimizer, by Hugging Face's names.

    Args:
        learning_rate: the highest rate.
        schedule: its `lr_scheduler_type`.
        warmup_steps: updates of rising rate; below 1 a share of `total`.
        total: updates of the whole run.
        weight_decay: decoupled decay, times the rate, but of sgd added to the gradient; none on
            biases and norms.
        beta1, beta2: decay of the first and second moment.
        epsilon: added to the root of the second moment.
        max_grad_norm: global norm that gradients are scaled down to; 0 leaves them.
        name: one of `OPTIMS`.
        arguments: further ones of the optimizer, torch's `momentum` and the like.
        schedule_arguments: transformers' `lr_scheduler_kwargs`.
        layer_decay: each layer's rate over that of the next one above it.
    """

    learning_rate: float
    schedule: str
    warmup_steps: float
    total: int
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    name: str = "adamw_torch"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    schedule_arguments: Mapping[str, Any] = field(default_factory=dict)
    layer_decay: float = 1.0

    def transform(self, decays: Callable[[Any], Any] = decayed) -> optax.GradientTransformation:
        """Return the optax chain: clip, moments, decay, rate.

        Args:
            decays: which leaves of the parameters decay, a tree of booleans.

        Raises:
            UnknownName: a name that `OPTIMS` lacks, or an argument of another optimizer.
            InputRefused: an argument that does not fit.
        """
        if self.name not in OPTIMS:
            raise UnknownName(
                f"optim {shown(self.name)}: expected one of {', '.join(OPTIMS)}"
                f"{nearest(self.name, OPTIMS)}"
            )
        return optimizer(
            OPTIMS[self.name],
            self.rate(),
            weight_decay=self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            max_grad_norm=self.max_grad_norm,
            layer_decay=self.layer_decay,
            decays=decays,
            arguments=self.arguments,
        )

    def rate(self) -> Callable[[Any], Any]:
        """Return the learning rate of update n, counted from 0.

        Raises:
            UnknownName: an unknown schedule, or an argument of another one.
            InputRefused: an argument that does not fit.
        """
        return learning_rate(
            self.learning_rate,
            self.schedule,
            self.warmup_steps,
            self.total,
            self.schedule_arguments,
        )


def optim_of(settings: Settings, updates: int) -> Optim:
    """Return the optimizer that the settings name, for a run of so many updates.

    Raises:
        UnknownName: an argument that optimizer or schedule does not take.
        InputRefused: a value that does not fit, or a text that is no pair.
    """
    optim = Optim(
        learning_rate=settings["learning_rate"],
        schedule=settings["lr_scheduler_type"],
        warmup_steps=settings["warmup_steps"],
        total=updates,
        weight_decay=settings["weight_decay"],
        beta1=settings["adam_beta1"],
        beta2=settings["adam_beta2"],
        epsilon=settings["adam_epsilon"],
        max_grad_norm=settings["max_grad_norm"],
        name=settings["optim"],
        arguments=pairs_of("optim_args", settings["optim_args"]),
        schedule_arguments=pairs_of("lr_scheduler_kwargs", settings["lr_scheduler_kwargs"]),
        layer_decay=settings["layer_decay"],
    )
    optim.transform()
    return optim


def pairs_of(name: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that texts such as `momentum=0.9` or `{"min_lr": 1e-6}` give.

    Args:
        name: of the setting, for the error.
        texts: pairs, also several in one text parted by commas, or the parts of one JSON object.

    Raises:
        InputRefused: a text that is neither, or a name given twice.
    """
    from dew.cli.config_file import read_value

    whole = ",".join(texts).strip()
    if whole.startswith("{"):
        value = read_value(whole, f"--{name}")
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise InputRefused(f"{name} is {shown(whole)}; expected an object such as {{a: 1}}")
        return value
    found: dict[str, Any] = {}
    for part in _parts(whole):
        key, equals, text = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not text:
            raise InputRefused(f"{name}: {shown(part.strip())} is no pair; write it as a=1")
        if key in found:
            raise InputRefused(f"{name}: {key} stands twice")
        found[key] = read_value(text, f"--{name}")
    return found


def _parts(whole: str) -> list[str]:
    """Return what commas part, but for those within brackets."""
    parts, depth = [""], 0
    for letter in whole:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]
