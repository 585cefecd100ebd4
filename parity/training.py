"""dew's side of the checks that train: the objective's mean loss, its gradient, and AdamW."""

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

    gradient = jax.jit(jax.value_and_grad(_mean_loss(subject, batch)))
    loss, gradients = gradient(subject.bundle.variables["params"], dict(batch))
    return float(loss), gradients


def adamw_steps(
    subject: Subject, batches: Sequence[Mapping[str, np.ndarray]], settings: AdamW
) -> tuple[list[float], dict[str, Any]]:
    """Take one AdamW step a batch, and return the loss before each and the last parameters.

    Args:
        subject: whose bundle is trained; it is not changed.
        batches: of one shape.
        settings: the optimizer's numbers; every parameter is decayed.
    """
    import jax
    import optax

    optimizer = optax.adamw(
        settings.learning_rate,
        b1=settings.beta1,
        b2=settings.beta2,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
    value_and_gradient = jax.value_and_grad(_mean_loss(subject, batches[0]))

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        loss, gradients = value_and_gradient(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return loss, optax.apply_updates(params, updates), state

    params = subject.bundle.variables["params"]
    state = optimizer.init(params)
    losses = []
    for batch in batches:
        loss, params, state = step(params, state, dict(batch))
        losses.append(float(loss))
    return losses, params


def _mean_loss(subject: Subject, batch: Mapping[str, np.ndarray]) -> Any:
    import jax

    from dew.objectives.base import Step
    from dew.objectives.lm import LMObjective

    objective = LMObjective(subject.bundle.model, batch["text"].shape[1] - 1)
    step = Step(step=np.int32(0), key=jax.random.key(0), ema=None)

    def mean_loss(params: Any, batch: Any) -> Any:
        found = objective.loss({"params": params}, batch, step)
        ratio = found[0] if isinstance(found, tuple) else found
        return ratio.total / ratio.mass

    return mean_loss
