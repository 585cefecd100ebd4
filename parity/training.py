"""dew's side of the checks that train: the objective's mean loss, its gradient, the train step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parity.reference import AdamW
from parity.subject import Subject


def mean_loss_and_gradients(
    subject: Subject, batch: Mapping[str, np.ndarray]
) -> tuple[float, dict[str, Any]]:
    """Return the loss per counted target in nats, and its gradient by every parameter.

    Args:
        subject: whose bundle is differentiated.
        batch: `text` and `segments`, int32 [B, L + 1].
    """
    import jax
    import jax.numpy as jnp

    from dew.objectives.base import Step
    from dew.objectives.lm import LMObjective

    objective = LMObjective(subject.bundle.model, batch["text"].shape[1] - 1)
    step = Step(step=jnp.int32(0), key=jax.random.key(0), ema=None)

    @jax.jit
    @jax.value_and_grad
    def mean_loss(params: Any, batch: Any) -> Any:
        return objective.loss({"params": params}, batch, step).value

    loss, gradients = mean_loss(subject.bundle.variables["params"], dict(batch))
    return float(loss), gradients


def adamw_steps(
    subject: Subject, batches: Sequence[Mapping[str, np.ndarray]], settings: AdamW
) -> tuple[list[float], dict[str, Any]]:
    """Take one step of the trainer a batch, and return the mean loss before each and the weights.

    Args:
        subject: whose bundle is trained; it is not changed.
        batches: of one shape.
        settings: the optimizer's numbers; every parameter is decayed.
    """
    import jax

    from dew.objectives.lm import LMObjective
    from dew.training.adam import adamw
    from dew.training.state import first_state
    from dew.training.step import microstep

    objective = LMObjective(subject.bundle.model, batches[0]["text"].shape[1] - 1)
    optimizer = adamw(
        settings.learning_rate,
        b1=settings.beta1,
        b2=settings.beta2,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
    step = jax.jit(microstep(objective, optimizer, accumulation=1))
    state = first_state(
        dict(subject.bundle.variables), optimizer, key=jax.random.key(0), ema=None, accumulation=1
    )
    losses = []
    for batch in batches:
        state, report = step(state, {}, dict(batch))
        losses.append(float(report["total"]) / float(report["mass"]))
    return losses, state.params["params"]
