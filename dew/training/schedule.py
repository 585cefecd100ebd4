"""When a fit logs, evaluates and saves."""

from __future__ import annotations

from dataclasses import dataclass

from dew.errors import InputRefused


@dataclass(frozen=True)
class Schedule:
    """When what happens, in microbatches.

    Raises:
        InputRefused: a number below 1 (`steps` may be 0).
    """

    steps: int
    log_every: int
    eval_every: int | None
    checkpoint_every: int | None

    def __post_init__(self) -> None:
        wrong = [
            f"{name}={value}"
            for name, value in vars(self).items()
            if value is not None and value < (0 if name == "steps" else 1)
        ]
        if wrong:
            raise InputRefused(f"{', '.join(wrong)}: these count microbatches, from 1")


def due(every: int | None, step: int) -> bool:
    """Tell whether something that happens `every` so many steps happens after `step`."""
    return every is not None and step % every == 0
