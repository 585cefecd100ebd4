"""Do the loss and the gradient of every parameter agree with torch's?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity import reference, reference_training
from parity.check import Finding
from parity.packing import Directed, Documents, Tokens
from parity.rounding import RULE, Deviation, deviation, deviations, judged
from parity.subject import Subject
from parity.training import asked, by_torch, mean_loss_and_gradients


@dataclass(frozen=True)
class Answer:
    """A loss, its gradient by torch name, and torch's losses of single tokens.

    One sum's error may be small by luck; torch's error of the loss is therefore taken over the
    losses of single tokens, of which there are many.
    """

    loss: float
    gradients: dict[str, np.ndarray]
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0))


class LossAndGradient:
    """Causal models: dew sees documents packed into rows; torch sees each in a row of its own.

    Their mean losses in nats over the counted targets are the same number only if nothing crosses
    from one document to the next. A traced model takes no document mask: there both see single
    rows. Of all other models the loss is the sum of every output, times random directions.
    """

    name = "loss and gradient"
    tolerance = RULE

    def inputs(self, subject: Subject, seed: int) -> Documents | Directed:
        """Return documents of uneven lengths, or inputs with directions."""
        return asked(subject, seed)

    def ours(self, subject: Subject, inputs: Documents | Directed) -> Answer:
        """Return the objective's loss and gradient."""
        loss, gradients = mean_loss_and_gradients(subject, inputs)
        return Answer(loss, subject.by_torch_name(gradients))

    def reference(self, subject: Subject, inputs: Documents | Directed) -> tuple[Answer, Answer]:
        """Return torch's in float32 and in float64."""
        batch = by_torch(inputs)
        single, exact = (
            _reference(subject.checkpoint.model(precision), batch)
            for precision in (reference.SINGLE, reference.EXACT)
        )
        return single, exact

    def compare(self, ours: Answer, reference: tuple[Answer, Answer]) -> Finding:
        """Hold each gradient to the rule, and the loss where it is a mean of tokens' losses."""
        single, exact = reference
        found = deviations(
            ours.gradients, single.gradients, exact.gradients, scale=_largest(exact.gradients)
        )
        if exact.tokens.size:
            tokens = deviation("", single.tokens, single.tokens, exact.tokens, scale=0.0).torch
            own = max(tokens, abs(single.loss - exact.loss))
            error = abs(ours.loss - exact.loss)
            found.append(Deviation("the loss", error, own, abs(exact.loss), error, own))
        return judged(found, loss=ours.loss, loss_torch=exact.loss)


def _reference(model: Any, batch: Tokens | Directed) -> Answer:
    loss, gradients = reference_training.loss_and_gradients(model, batch)
    if isinstance(batch, Directed):
        return Answer(loss, gradients)
    return Answer(loss, gradients, reference_training.token_losses(model, batch))


def _largest(gradients: dict[str, np.ndarray]) -> float:
    """Return the largest magnitude of any gradient.

    It is the scale of all of them: a key's bias, for one, has the gradient zero, since softmax
    does not see it, and what float32 leaves there is the rounding of larger numbers.
    """
    return max(float(np.abs(value).max()) for value in gradients.values())
