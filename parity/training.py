"""dew's side of the checks that train: the objective's mean loss, its gradient, the train step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dew.objectives.base import Objective, Ratio
from parity.packing import Documents, packed, single_rows
from parity.reference import AdamW, first_output, scores_tokens
from parity.subject import Subject


def training_batch(subject: Subject, documents: Documents) -> dict[str, np.ndarray]:
    """Return documents as the batch that the subject's objective takes.

    A native causal model gets them packed, two to a row; others each in a row of its own.
    """
    if subject.packs:
        return packed(documents)
    rows = single_rows(documents)
    return {"text": rows.input_ids, "segments": rows.attention_mask}


def language_objective(subject: Subject, length: int) -> Objective:
    """Return what trains the subject on the next of `length` tokens."""
    from bridges.torch.objectives import TracedLMObjective
    from dew.objectives.lm import LMObjective

    if subject.traced:
        return TracedLMObjective(subject.bundle, length)
    return LMObjective(subject.bundle.model, length)


def _objective(subject: Subject, batch: Mapping[str, np.ndarray]) -> Objective:
    if "text-generation" not in subject.bundle.tasks:
        return _AnyOutput(subject)
    return language_objective(subject, batch["text"].shape[1] - 1)


class _AnyOutput(Objective):
    """The losses that the reference takes of a model that is no causal language model."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def loss(self, variables: Any, batch: Mapping[str, Any], step: Any) -> Ratio:
        """Return the sum over the counted targets, and their number."""
        import jax.numpy as jnp

        from dew.objectives.lm import target_weights
        from dew.objectives.supervised import cross_entropy

        targets, weights = target_weights(batch)
        real = (batch["segments"][:, :-1] != 0).astype(batch["text"].dtype)
        given = self.subject.given(batch["text"][:, :-1], real)
        scores = first_output(self.subject.bundle.apply(variables, **given))
        if scores_tokens(scores.shape, batch["text"].shape, self.subject.bundle.config):
            losses = cross_entropy(scores, targets)
        else:
            by_token = scores.shape[:2] == weights.shape
            rows = weights.shape if by_token else (len(scores), 1)
            losses = jnp.mean(jnp.square(scores).reshape(*rows, -1), -1)
        return Ratio(jnp.sum(weights * losses), jnp.sum(weights))


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

    objective = _objective(subject, batch)
    rest = {name: value for name, value in subject.bundle.variables.items() if name != "params"}
    step = Step(step=jnp.int32(0), key=jax.random.key(0), ema=None)

    @jax.jit
    @jax.value_and_grad
    def mean_loss(params: Any, batch: Any) -> Any:
        found = objective.loss({**rest, "params": params}, batch, step)
        return Ratio.of(found[0] if isinstance(found, tuple) else found).value

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

    from dew.training.adam import adamw
    from dew.training.state import first_state
    from dew.training.step import microstep

    objective = _objective(subject, batches[0])
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
