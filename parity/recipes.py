"""How the runs of a loss curve are trained: an optimizer with all that goes around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

UPDATES = 50
ACCUMULATION = 2
WARMUP = 5


@dataclass(frozen=True)
class Recipe:
    """One run's optimizer, the same numbers for torch and for dew.

    Args:
        name: of the optimizer, as dew spells it.
        learning_rate: the highest rate.
        schedule: a name of transformers' `get_scheduler`.
        weight_decay: of the weights that decay; biases and the scales of norms do not.
        max_grad_norm: the norm that gradients are scaled down to.
        arguments: further ones, by torch's names.
    """

    name: str
    learning_rate: float
    schedule: str
    weight_decay: float
    max_grad_norm: float = 1.0
    arguments: Mapping[str, float | tuple[float, float]] = field(default_factory=dict)


# The epsilons are above the rounding of gradients, see `parity.checks.update`; Adafactor's is of
# their squares. The rates are too low for a run to be chaotic.
RECIPES = (
    Recipe("adamw", 3e-4, "linear", 0.1, arguments={"eps": 1e-4}),
    Recipe("sgd", 1e-2, "cosine", 0.01, arguments={"momentum": 0.9}),
    Recipe(
        "adafactor",
        3e-4,
        "constant_with_warmup",
        0.1,
        arguments={"clip_threshold": 0.5, "eps": (1e-8, 1e-3)},
    ),
)
"""Every kind of optimizer, each under another schedule; all warm up and are clipped."""
